"""A request's story in words, in the order in which things happened. Nothing in them is a control code."""

from collections.abc import Iterator

from domain.shown import shown
from interfaces.cli.pace import told_latency
from interfaces.cli.request_story import RequestStory

_TIERS = {"live": "the turn before", "hot": "memory", "store": "the store"}
_WAITS = {
    "model": "its model to be loaded",
    "prefix": "the beginning of its prompt to be looked up, or computed by another request",
    "place": "a place among those computed at once (engine.max_batch)",
    "memory": "memory that others held",
}
_ENDS = {
    "stop": "the answer was complete",
    "tool_calls": "the answer was complete, and calls tools",
    "length": "max_tokens or the context was used up",
    "cancelled": "its client left, or it was cancelled",
    "error": "it failed",
}


def told(story: RequestStory) -> Iterator[tuple[str, str]]:
    """Lines as (label, text), as `cairn logs explain` prints them."""
    by = [story.operation, f"key {story.key}" if story.key else "", story.priority]
    yield "request", ", ".join(shown(part) for part in (story.id, f"model {story.model}", *by) if part)
    queued = "" if story.queued_at is None else f"{story.queued_at.astimezone():%Y-%m-%d %H:%M:%S}, "
    yield "queued", f"{queued}with a prompt of {story.prompt_tokens:,} tokens"
    if story.queue_s is not None:
        yield "waited", told_latency(story.queue_s) + _why_it_waited(story)
    yield from _prompt(story)
    if story.preemptions:
        yield "preempted", f"{story.preemptions} times: others needed its memory (engine.memory); it went on afterwards"
    if story.ttft_s is not None:
        yield "first token", f"after {told_latency(story.ttft_s)}"
    if story.decode_s is not None:
        rate = f", {story.output_tokens / story.decode_s:,.1f} a second" if story.decode_s else ""
        yield "answer", f"{story.output_tokens:,} tokens in {told_latency(story.decode_s)}{rate}"
    yield _end(story)
    if (most := _most(story)) is not None:
        yield "most of it", most
    if story.trace_id:
        yield "trace", shown(story.trace_id)


def _prompt(story: RequestStory) -> Iterator[tuple[str, str]]:
    if story.prefill_s is None and not story.stopped:
        return
    origins = ", ".join(f"{count:,} from {_TIERS.get(tier, shown(tier))}" for tier, count in story.reused.items())
    num_reused = sum(story.reused.values())
    yield "reused", f"{num_reused:,} tokens{f': {origins}' if origins else ''}"
    if story.stopped:
        yield "no more", f"{shown(story.stopped)}: {shown(story.sentence, 500)}"
    for side, text in story.break_text.items():
        yield f"  {side}", shown(text, 500)
    if story.prefill_s is not None:
        whole = "" if story.done_tokens >= story.prompt_tokens else f" of {story.prompt_tokens - num_reused:,}"
        yield "computed", f"{story.computed_tokens:,}{whole} tokens, in {told_latency(story.prefill_s)}"


def _end(story: RequestStory) -> tuple[str, str]:
    after = f"after {told_latency(story.total_s)}"
    if story.stage:
        return "open", f"{after}: in {shown(story.stage)}"
    why = _ENDS.get(story.reason, "")
    error = f": {shown(story.error_code)}: {shown(story.error_message, 500)}" if story.error_code else ""
    return "ended", f"{after}: {shown(story.reason)}{f', {why}' if why else ''}{error}"


def _why_it_waited(story: RequestStory) -> str:
    reasons = [_WAITS.get(reason, shown(reason)) for reason in story.waited_for]
    if story.followed:
        reasons.append(f"{shown(story.followed)}, which was computing the beginning of the same prompt")
    return f", for {' and for '.join(reasons)}" if reasons else ""


def _most(story: RequestStory) -> str | None:
    """Where the time went, if anywhere."""
    stages = {"waiting": story.queue_s, "prefill": story.prefill_s, "decode": story.decode_s}
    known = {name: value for name, value in stages.items() if value is not None}
    total = sum(known.values())
    if len(known) < 2 or not total:
        return None
    name, value = max(known.items(), key=lambda item: item[1])
    return f"{name}, {value / total:.0%} of the time"


__all__ = ("told",)
