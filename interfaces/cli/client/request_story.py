"""The texts that explain a request to an operator: its story, and the explanation of its lookup.

A request is the body of `GET /admin/api/requests/{id}`: as the server that remembers it gives it, or read from a line
of its log (plain or JSON, with or without the prefix of a journal), which holds less. The texts hold no control codes.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from adapters.system.request_summary import read_summary
from domain.prefix.explanation import (
    CONTEXT_TOKENS,
    TIER_NAMES,
    Divergence,
    Explanation,
    StopReason,
)
from domain.printable import printable
from interfaces.cli.terminal.progress import format_latency

if TYPE_CHECKING:
    from interfaces.http.native.bodies import PromptExplanation
    from interfaces.http.native.cache import ExplanationBody
    from interfaces.http.native.requests import ImagesBody, RequestBody


def queued_at(body: "RequestBody") -> datetime:
    """The local time at which a request was queued. Raises ValueError, OverflowError or OSError out of range."""
    return datetime.fromtimestamp(body.queued_unix_s, UTC).astimezone()


def from_log(id: str, pairs: Mapping[str, str], ended_at: datetime) -> "RequestBody":
    """The pairs of `read_summary` as the body that the server gave while it remembered the request; what a log line
    lacks is empty. Raises ValueError, OverflowError or OSError for malformed numbers."""
    from interfaces.http.native.bodies import prompt_explanation
    from interfaces.http.native.requests import EndBody, RequestBody, StageTimesBody

    def number(name: str) -> int:
        return int(pairs.get(name, "0"))

    def seconds(name: str) -> float | None:
        if name not in pairs:
            return None
        return timedelta(seconds=float(pairs[name].removesuffix("s"))).total_seconds()

    times = StageTimesBody(seconds("queue"), seconds("prefill"), seconds("decode"), seconds("ttft"))
    explanation, age_s, ended_s = _explanation(pairs), seconds("total") or 0.0, ended_at.timestamp()
    body = RequestBody(
        id=id,
        model=pairs.get("model", ""),
        requested_model="",
        key=pairs.get("key", ""),
        operation="",
        priority="",
        stage="decode" if "decode" in pairs else "prefill" if "prefill" in pairs else "queue",
        waits_for=None,
        waited_for=pairs["waited"].split(",") if pairs.get("waited") else [],
        followed=pairs.get("followed"),
        preempted=False,
        preemptions=number("preempted"),
        queued_unix_s=ended_s - age_s,
        age_s=age_s,
        times=times,
        prompt_tokens=number("prompt"),
        done_tokens=number("reused") + number("computed"),
        computed_tokens=number("computed"),
        reused={tier: number(tier) for tier in TIER_NAMES if tier in pairs},
        output_tokens=number("output"),
        end=EndBody(ended_s, pairs.get("reason", ""), pairs.get("error"), pairs.get("message", "")),
        explanation=prompt_explanation(explanation) if explanation is not None else None,
        drafted_tokens=number("drafted"),
        accepted_tokens=number("accepted"),
        images=_images(number, seconds("tower")) if "images" in pairs else None,
    )
    queued_at(body)
    return body


def _images(number: Callable[[str], int], tower_s: float | None) -> "ImagesBody":
    from interfaces.http.native.requests import ImagesBody

    num_images, num_tokens = number("images"), number("image_tokens")
    return ImagesBody(num_images, num_tokens, number("image_reused"), number("seen"), tower_s or 0.0)


def _explanation(pairs: Mapping[str, str]) -> Explanation | None:
    """The explanation of the lookup in a log line; None without a lookup, and for a reason of another version."""
    try:
        reason = StopReason(pairs["stopped"])
    except (KeyError, ValueError):
        return None
    reused = {tier: int(pairs[tier]) for tier in TIER_NAMES if tier in pairs}
    divergence = Divergence(int(pairs["diverged"]), (), (), None) if "diverged" in pairs else None
    return Explanation(int(pairs.get("prompt", "0")), reason, reused, int(pairs.get("known", "0")), divergence)


LOGGER = "cairn.requests"
_PLAIN = re.compile(rf"(\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}}) \w+ {re.escape(LOGGER)}: (.*)")


def find_story(lines: Iterable[str], id: str) -> "tuple[RequestBody, str] | None":
    """The request in the last line about its end, and its trace id (empty if it was not traced); None without one."""
    found: tuple[RequestBody, str] | None = None
    for line in lines:
        if id not in line:
            continue
        try:
            found = _story(line.rstrip("\r\n"), id) or found
        except (ValueError, OverflowError, OSError, RecursionError):  # a line that another program wrote
            continue
    return found


def _story(line: str, id: str) -> "tuple[RequestBody, str] | None":
    """The request in a line; None for a line that is not about it. Raises as `from_log` and `json.loads` do."""
    if (plain := _PLAIN.search(line)) is not None:
        message, ended_at = plain[2], datetime.strptime(plain[1], "%Y-%m-%d %H:%M:%S.%f").astimezone()
    else:
        match json.loads(line[max(0, line.find("{")) :]):
            case {"logger": logger, "message": str(message), "time": str(time)} if logger == LOGGER:
                ended_at = datetime.fromisoformat(time)
            case _:
                return None
    summary = read_summary(message)
    if summary is None or summary[0] != id:
        return None
    return from_log(id, summary[1], ended_at), summary[1].get("trace", "")


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


def story_lines(body: "RequestBody", trace_id: str = "") -> Iterator[tuple[str, str]]:
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
    if trace_id:
        yield "trace", printable(trace_id)


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
        f" ({prompt.live_tokens + prompt.hot_tokens:,} from memory, {prompt.store_tokens:,} from the store),"
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
