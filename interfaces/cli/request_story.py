"""The story of one request, from whoever has it: the server that remembers it, or a line of its log.

Everything may be unknown: a log line says less than the server, and what did not happen is nowhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from domain.explanation import TIER_NAMES, Divergence, Explanation, StopReason
from domain.explanation_sentence import explanation_sentence

if TYPE_CHECKING:
    from interfaces.http.admin.request_body import RequestBody
    from interfaces.http.explanation_body import PromptExplanation

_TIERS = TIER_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStory:
    """Times in seconds; None for what is unknown or did not happen. `reused`: tokens by tier. `stopped`: why no more
    was reused, a StopReason value; `sentence`: the same in words; `break_text`: both sides, where they may be told.
    `waited_for`: WaitReason values. `followed`: whose computing of the same prefix it waited for. `stage`: where it
    is, empty when it has ended. `reason`: why it ended. `trace_id`: where the whole of it is, if it was traced."""

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
    """Of `read_summary`. Raises ValueError for values that are no numbers."""

    def number(name: str) -> int:
        return int(pairs.get(name, "0"))

    def seconds(name: str) -> float | None:
        if name not in pairs:
            return None
        value = float(pairs[name].removesuffix("s"))
        timedelta(seconds=value)
        return value

    reused = {tier: number(tier) for tier in _TIERS if tier in pairs}
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
    end, told = body.end, body.explanation
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
        stopped=told.reason.value if told is not None else "",
        sentence=told.sentence if told is not None else "",
        break_text=_break_text(told) if body.shows_text and told is not None else {},
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


def _break_text(told: "PromptExplanation") -> dict[str, str]:
    found = told.divergence
    if found is None:
        return {}
    sides = {"both": found.before, "prompt": found.prompt, "stored": found.stored}
    return {side: text for side, text in sides.items() if text}


def _sentence(pairs: Mapping[str, str], reused: Mapping[str, int]) -> str:
    """Words for a reason that a log line names, with its numbers; empty for one that this version does not know."""
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


__all__ = ("RequestStory", "from_log", "from_server")
