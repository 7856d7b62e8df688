"""The texts that explain a request to an operator: its story, and the explanation of its lookup.

A request is the body of `GET /admin/api/requests/{id}`. The texts hold no control codes.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from domain.prefix.explanation import CONTEXT_TOKENS
from domain.printable import printable
from interfaces.cli.terminal.progress import format_latency

if TYPE_CHECKING:
    from interfaces.http.native.bodies import PromptExplanation
    from interfaces.http.native.cache import ExplanationBody
    from interfaces.http.native.requests import RequestBody


def queued_at(body: "RequestBody") -> datetime:
    """The local time at which a request was queued. Raises ValueError, OverflowError or OSError out of range."""
    return datetime.fromtimestamp(body.queued_unix_s, UTC).astimezone()


_TIERS = {"live": "the turn before", "hot": "memory", "store": "the store", "shared": "the shared store"}
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


def story_lines(body: "RequestBody") -> Iterator[tuple[str, str]]:
    """The lines that `cairn logs explain` prints, as (label, text)."""
    times = body.times
    by = [body.operation, f"key {body.key}" if body.key else "", body.priority]
    yield "request", ", ".join(printable(part) for part in (body.id, f"model {body.model}", *by) if part)
    yield "queued", f"{queued_at(body):%Y-%m-%d %H:%M:%S}, with a prompt of {body.prompt_tokens:,} tokens"
    if times.queue_s is not None:
        yield "waited", format_latency(times.queue_s) + _why_it_waited(body)
    yield from _prompt(body)
    if body.preemptions:
        yield "preempted", f"{body.preemptions} times: others needed its memory (engine.memory); it went on afterwards"
    if times.ttft_s is not None:
        yield "first token", f"after {format_latency(times.ttft_s)}"
    if times.decode_s is not None:
        rate = f", {body.output_tokens / times.decode_s:,.1f} a second" if times.decode_s else ""
        yield "answer", f"{body.output_tokens:,} tokens in {format_latency(times.decode_s)}{rate}"
    if body.drafted_tokens:
        yield "drafted", f"{body.accepted_tokens:,} of {body.drafted_tokens:,} drafted tokens were accepted"
    yield _end(body)
    if (most := _most(body)) is not None:
        yield "most of it", most


def _prompt(body: "RequestBody") -> Iterator[tuple[str, str]]:
    found, prefill_s = body.explanation, body.times.prefill_s
    if prefill_s is None and found is None:
        return
    reused = {tier: count for tier, count in body.reused.items() if count}
    origins = ", ".join(f"{count:,} from {_TIERS.get(tier, printable(tier))}" for tier, count in reused.items())
    num_reused = sum(reused.values())
    yield "reused", f"{num_reused:,} tokens{f': {origins}' if origins else ''}"
    if found is not None:
        yield "no more", f"{found.reason.value}: {printable(found.sentence, 500)}"
        if body.shows_text and (split := found.divergence) is not None:
            sides = {"both": split.before, "prompt": split.prompt, "stored": split.stored}
            yield from ((f"  {side}", printable(text, 500)) for side, text in sides.items() if text)
    if (images := body.images) is not None:
        tower = f", in {format_latency(images.tower_s)}" if images.seen else ""
        yield (
            "images",
            f"{images.images:,} of {images.tokens:,} tokens, {images.reused_tokens:,} of them reused; the tower passed"
            f" over {images.seen:,}{tower}",
        )
    if prefill_s is not None:
        whole = "" if body.done_tokens >= body.prompt_tokens else f" of {body.prompt_tokens - num_reused:,}"
        yield "computed", f"{body.computed_tokens:,}{whole} tokens, in {format_latency(prefill_s)}"


def _end(body: "RequestBody") -> tuple[str, str]:
    after, end = f"after {format_latency(body.age_s)}", body.end
    if end is None:
        return "open", f"{after}: in {body.stage}"
    why = f", {_ENDS[end.reason]}" if end.reason in _ENDS else ""
    if end.repeated_tokens:
        why = f", it repeated the same {end.repeated_tokens:,} tokens (repetition_detection)"
    error = f": {printable(end.error_code)}: {printable(end.error_message, 500)}" if end.error_code else ""
    return "ended", f"{after}: {printable(end.reason)}{why}{error}"


def _why_it_waited(body: "RequestBody") -> str:
    reasons = [_WAITS.get(reason, printable(reason)) for reason in body.waited_for]
    if body.followed:
        reasons.append(f"{printable(body.followed)}, which was computing the beginning of the same prompt")
    return f", for {' and for '.join(reasons)}" if reasons else ""


def _most(body: "RequestBody") -> str | None:
    """The stage that took most of the time; None if fewer than two are known."""
    stages = {"waiting": body.times.queue_s, "prefill": body.times.prefill_s, "decode": body.times.decode_s}
    known = {name: value for name, value in stages.items() if value is not None}
    total = sum(known.values())
    if len(known) < 2 or not total:
        return None
    name, value = max(known.items(), key=lambda item: item[1])
    return f"{name}, {value / total:.0%} of the time"


MAX_TEXT_CHARS = 2000
"""The bound on each text; the text around a divergence has a few dozen tokens."""

NOT_SHOWN = "not shown: cache.show_text is off (auto: shown only by a server on loopback without a key)"


def show_explanation(console: Console, explanation: "ExplanationBody") -> None:
    model = printable(explanation.model)
    for number, prompt in enumerate(explanation.prompts, 1):
        name = f"{model}, prompt {number} of {len(explanation.prompts)}" if len(explanation.prompts) > 1 else model
        _show_prompt(console, name, prompt)


def _show_prompt(console: Console, name: str, prompt: "PromptExplanation") -> None:
    _line(
        console,
        f"{name}: {prompt.prompt_tokens:,} prompt tokens, {prompt.stopped_at:,} reused"
        f" ({prompt.live_tokens + prompt.hot_tokens:,} from memory, {prompt.store_tokens:,} from the store"
        f"{f', {prompt.shared_tokens:,} from the shared store' if prompt.shared_tokens else ''}),"
        f" {prompt.computed_tokens:,} to compute",
    )
    _line(console, Text.assemble((_shown(prompt.reason.value), "bold"), f": {_shown(prompt.sentence)}"))
    if (found := prompt.divergence) is not None:
        _line(
            console,
            Text.assemble(("  both    ", "dim"), "..." if found.position > CONTEXT_TOKENS else "", _text(found.before)),
        )
        _line(console, Text.assemble(("  prompt  ", "dim"), _text(found.prompt, "green")))
        stored = _text(found.stored, "red") if found.stored is not None else Text(NOT_SHOWN)
        _line(console, Text.assemble(("  stored  ", "dim"), stored))
    if (fork := prompt.nearest_fork) is not None and prompt.computed_tokens > 1:
        kind = _shown(fork.kind.value.replace("_", " "))
        _line(console, f"The last expected fork before that is at token {fork.position:,} ({kind}).")


def _shown(text: str) -> str:
    return printable(text, MAX_TEXT_CHARS)


def _text(text: str, style: str = "") -> Text:
    return Text(_shown(text), style)


def _line(console: Console, text: str | Text) -> None:
    console.print(text if isinstance(text, Text) else Text(text), soft_wrap=True)
