"""The texts that explain a request to an operator: its story, and the explanation of its lookup.

The story comes from the server that remembers the request, or from a line of its log (plain or JSON, with or without
the prefix of a journal). Every figure may be unknown: a log line holds less than the server does. The texts hold no
control codes.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
    explanation_sentence,
)
from domain.printable import printable
from interfaces.cli.terminal.progress import format_latency

if TYPE_CHECKING:
    from interfaces.http.native.bodies import PromptExplanation
    from interfaces.http.native.cache import ExplanationBody
    from interfaces.http.native.requests import RequestBody


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStory:
    """A request in figures. Times are in seconds; None if unknown or not reached. `reused`: tokens by tier. `stopped`:
    a StopReason value, and `sentence` its explanation; `break_text`: the text of both sides, if it may be read.
    `waited_for`: WaitReason values. `followed`: the request whose prefill of the same prefix it waited for. `stage`:
    empty if it has ended. `reason`: of the end. `trace_id`: of its trace, if it was traced."""

    id: str
    model: str
    key: str = ""
    operation: str = ""
    priority: str = ""
    ended_at: datetime | None = None
    prompt_tokens: int = 0
    done_tokens: int = 0
    computed_tokens: int = 0
    reused: Mapping[str, int] = field(default_factory=dict[str, int])
    stopped: str = ""
    sentence: str = ""
    break_text: Mapping[str, str] = field(default_factory=dict[str, str])
    output_tokens: int = 0
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    ttft_s: float | None = None
    total_s: float = 0.0
    waited_for: tuple[str, ...] = ()
    followed: str = ""
    preemptions: int = 0
    stage: str = ""
    reason: str = ""
    error_code: str = ""
    error_message: str = ""
    trace_id: str = ""

    @property
    def queued_at(self) -> datetime | None:
        return None if self.ended_at is None else self.ended_at - timedelta(seconds=self.total_s)


def from_log(id: str, pairs: Mapping[str, str], written_at: datetime | None) -> RequestStory:
    """The story in the pairs of `read_summary`. Raises ValueError for malformed numbers."""

    def number(name: str) -> int:
        return int(pairs.get(name, "0"))

    def seconds(name: str) -> float | None:
        if name not in pairs:
            return None
        value = float(pairs[name].removesuffix("s"))
        timedelta(seconds=value)
        return value

    reused = {tier: number(tier) for tier in TIER_NAMES if tier in pairs}
    return RequestStory(
        id=id,
        model=pairs.get("model", ""),
        key=pairs.get("key", ""),
        ended_at=written_at,
        prompt_tokens=number("prompt"),
        done_tokens=number("reused") + number("computed"),
        computed_tokens=number("computed"),
        reused=reused,
        stopped=pairs.get("stopped", ""),
        sentence=_sentence(pairs, reused),
        output_tokens=number("output"),
        queue_s=seconds("queue"),
        prefill_s=seconds("prefill"),
        decode_s=seconds("decode"),
        ttft_s=seconds("ttft"),
        total_s=seconds("total") or 0.0,
        waited_for=_listed(pairs, "waited"),
        followed=pairs.get("followed", ""),
        preemptions=number("preempted"),
        reason=pairs.get("reason", "error" if "error" in pairs else ""),
        error_code=pairs.get("error", ""),
        error_message=pairs.get("message", ""),
        trace_id=pairs.get("trace", ""),
    )


def from_server(body: "RequestBody") -> RequestStory:
    end, found = body.end, body.explanation
    return RequestStory(
        id=body.id,
        model=body.model,
        key=body.key,
        operation=body.operation,
        priority=body.priority,
        ended_at=datetime.fromtimestamp(body.queued_unix_s + body.age_s, UTC),
        prompt_tokens=body.prompt_tokens,
        done_tokens=body.done_tokens,
        computed_tokens=body.computed_tokens,
        reused={tier: count for tier, count in body.reused.items() if count},
        stopped=found.reason.value if found is not None else "",
        sentence=found.sentence if found is not None else "",
        break_text=_break_text(found) if body.shows_text and found is not None else {},
        output_tokens=body.output_tokens,
        queue_s=body.times.queue_s,
        prefill_s=body.times.prefill_s,
        decode_s=body.times.decode_s,
        ttft_s=body.times.ttft_s,
        total_s=body.age_s,
        waited_for=tuple(body.waited_for),
        followed=body.followed or "",
        preemptions=body.preemptions,
        stage="" if end is not None else body.stage,
        reason="" if end is None else end.reason,
        error_code=(end.error_code or "") if end is not None else "",
        error_message=end.error_message if end is not None else "",
    )


def _break_text(explanation: "PromptExplanation") -> dict[str, str]:
    found = explanation.divergence
    if found is None:
        return {}
    sides = {"both": found.before, "prompt": found.prompt, "stored": found.stored}
    return {side: text for side, text in sides.items() if text}


def _sentence(pairs: Mapping[str, str], reused: Mapping[str, int]) -> str:
    """The sentence for the stop reason of a log line; empty for a reason that this version does not know."""
    try:
        reason = StopReason(pairs["stopped"])
    except (KeyError, ValueError):
        return ""
    diverged = pairs.get("diverged")
    divergence = None if diverged is None else Divergence(int(diverged), (), (), None)
    known, num_prompt = int(pairs.get("known", "0")), int(pairs.get("prompt", "0"))
    return explanation_sentence(Explanation(num_prompt, reason, reused, known, divergence))


def _listed(pairs: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(pairs[name].split(",")) if pairs.get(name) else ()


LOGGER = "cairn.requests"
_PLAIN = re.compile(rf"(\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}}) \w+ {re.escape(LOGGER)}: (.*)")


def find_story(lines: Iterable[str], id: str) -> RequestStory | None:
    """The story in the last line about the end of this request; None without one."""
    found: RequestStory | None = None
    for line in lines:
        if id not in line:
            continue
        try:
            found = _story(line, id) or found
        except (ValueError, OverflowError):  # a line that another program wrote
            continue
    return found


def _story(line: str, id: str) -> RequestStory | None:
    """The story in a line; None for a line that is not about the request. Raises ValueError and OverflowError."""
    if (entry := _entry(line.rstrip("\r\n"))) is None:
        return None
    message, written_at = entry
    summary = read_summary(message)
    return from_log(id, summary[1], written_at) if summary is not None and summary[0] == id else None


def _entry(line: str) -> tuple[str, datetime | None] | None:
    """The message of a line of the request log and its time; None for a line of another logger."""
    if (plain := _PLAIN.search(line)) is not None:
        return plain[2], datetime.strptime(plain[1], "%Y-%m-%d %H:%M:%S.%f").astimezone()
    at = line.find("{")
    if at < 0:
        return None
    try:
        fields = json.loads(line[at:])
    except (ValueError, RecursionError):
        return None
    match fields:
        case {"logger": logger, "message": str(message), "time": str(time)} if logger == LOGGER:
            return message, _parsed(time)
        case _:
            return None


def _parsed(time: str) -> datetime | None:
    try:
        return datetime.fromisoformat(time)
    except ValueError:
        return None


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


def story_lines(story: RequestStory) -> Iterator[tuple[str, str]]:
    """The lines that `cairn logs explain` prints, as (label, text)."""
    by = [story.operation, f"key {story.key}" if story.key else "", story.priority]
    yield "request", ", ".join(printable(part) for part in (story.id, f"model {story.model}", *by) if part)
    queued = "" if story.queued_at is None else f"{story.queued_at.astimezone():%Y-%m-%d %H:%M:%S}, "
    yield "queued", f"{queued}with a prompt of {story.prompt_tokens:,} tokens"
    if story.queue_s is not None:
        yield "waited", format_latency(story.queue_s) + _why_it_waited(story)
    yield from _prompt(story)
    if story.preemptions:
        yield "preempted", f"{story.preemptions} times: others needed its memory (engine.memory); it went on afterwards"
    if story.ttft_s is not None:
        yield "first token", f"after {format_latency(story.ttft_s)}"
    if story.decode_s is not None:
        rate = f", {story.output_tokens / story.decode_s:,.1f} a second" if story.decode_s else ""
        yield "answer", f"{story.output_tokens:,} tokens in {format_latency(story.decode_s)}{rate}"
    yield _end(story)
    if (most := _most(story)) is not None:
        yield "most of it", most
    if story.trace_id:
        yield "trace", printable(story.trace_id)


def _prompt(story: RequestStory) -> Iterator[tuple[str, str]]:
    if story.prefill_s is None and not story.stopped:
        return
    origins = ", ".join(f"{count:,} from {_TIERS.get(tier, printable(tier))}" for tier, count in story.reused.items())
    num_reused = sum(story.reused.values())
    yield "reused", f"{num_reused:,} tokens{f': {origins}' if origins else ''}"
    if story.stopped:
        yield "no more", f"{printable(story.stopped)}: {printable(story.sentence, 500)}"
    for side, text in story.break_text.items():
        yield f"  {side}", printable(text, 500)
    if story.prefill_s is not None:
        whole = "" if story.done_tokens >= story.prompt_tokens else f" of {story.prompt_tokens - num_reused:,}"
        yield "computed", f"{story.computed_tokens:,}{whole} tokens, in {format_latency(story.prefill_s)}"


def _end(story: RequestStory) -> tuple[str, str]:
    after = f"after {format_latency(story.total_s)}"
    if story.stage:
        return "open", f"{after}: in {printable(story.stage)}"
    why = _ENDS.get(story.reason, "")
    error = f": {printable(story.error_code)}: {printable(story.error_message, 500)}" if story.error_code else ""
    return "ended", f"{after}: {printable(story.reason)}{f', {why}' if why else ''}{error}"


def _why_it_waited(story: RequestStory) -> str:
    reasons = [_WAITS.get(reason, printable(reason)) for reason in story.waited_for]
    if story.followed:
        reasons.append(f"{printable(story.followed)}, which was computing the beginning of the same prompt")
    return f", for {' and for '.join(reasons)}" if reasons else ""


def _most(story: RequestStory) -> str | None:
    """The stage that took most of the time; None if fewer than two are known."""
    stages = {"waiting": story.queue_s, "prefill": story.prefill_s, "decode": story.decode_s}
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
