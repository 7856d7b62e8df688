"""The log line of a request with its cost and the time of each stage."""

from collections.abc import Mapping

from application.events import RequestEnded
from application.services.request_timelines import RequestTimeline, Stage
from domain.printable import printable

MAX_CHARS = 2_000

_UNNAMED = ("request", "error_message")
"""The fields that stand in the line without their names."""


def request_fields(
    timeline: RequestTimeline, event: RequestEnded, trace_id: str | None = None
) -> dict[str, str | int | float]:
    """Returns the fields of the line by name; times in seconds; what did not happen is left out.

    `live`, `hot`, `store`: parts of `reused` by tier. `stopped`: the reason why no more was reused, `known`: the tokens
    whose blocks were stored, `diverged`: the first token that differs. `waited`: the reasons of waiting in the queue;
    `followed`: the request whose prefill of the same prefix it waited for. `drafted`: draft tokens that were verified,
    `accepted` of them. `images` have `image_tokens` of the prompt, `image_reused` of them reused; the tower passed over
    `seen` of them. `rate`: output tokens a second of decode. `repeated`: the tokens of the pattern
    whose repetition ended the answer."""
    stages = {stage.value: timeline.time_in_s(stage, event.at_ns) for stage in Stage}
    decode_s = stages[Stage.DECODING.value]
    usage, matched, images = event.usage, timeline.matched, timeline.images
    values: dict[str, str | int | float | None] = {
        "request": event.id,
        "model": timeline.model,
        "key": timeline.queued.client or None,
        "prompt": timeline.queued.num_prompt_tokens,
        "reused": usage.reused_tokens,
        **{tier: count for tier, count in usage.reused.items() if count},
        "stopped": matched.reason if matched is not None else None,
        "known": matched.num_known if matched is not None else None,
        "diverged": matched.diverged_at if matched is not None else None,
        "computed": timeline.num_computed_tokens,
        "preempted": timeline.num_preemptions or None,
        "images": images.num_images if images is not None else None,
        "image_tokens": images.num_tokens if images is not None else None,
        "image_reused": images.num_reused if images is not None else None,
        "seen": timeline.num_seen if images is not None else None,
        "tower": timeline.tower_ns / 1e9 if timeline.num_seen else None,
        "output": usage.completion_tokens,
        "drafted": usage.num_proposed or None,
        "accepted": usage.num_accepted if usage.num_proposed else None,
        **stages,
        "waited": ",".join(timeline.waited_for) or None,
        "followed": timeline.followed or None,
        "ttft": timeline.time_to_first_token_s,
        "total": (event.at_ns - timeline.queued.at_ns) / 1e9,
        "rate": usage.completion_tokens / decode_s if decode_s and usage.completion_tokens else None,
        "trace": trace_id,
        "reason": event.reason,
        "repeated": (event.parsing.repeated_tokens or None) if event.parsing is not None else None,
        "error": event.error_code,
        "error_message": one_line(event.error_message) or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def summarise(fields: Mapping[str, str | int | float]) -> str:
    """Returns the fields as one line of key=value pairs, the message of an error last."""
    pairs = (f"{name}={_shown(name, value)}" for name, value in fields.items() if name not in _UNNAMED)
    error = f": {fields['error_message']}" if "error_message" in fields else ""
    return f"request {fields['request']} {' '.join(pairs)}{error}"


def one_line(text: str) -> str:
    """`text` without line breaks and control codes, so that a message cannot pass for another line of the log."""
    return printable(" ".join(text[:MAX_CHARS].split()), MAX_CHARS)


def _shown(name: str, value: str | int | float) -> str:
    if isinstance(value, float):
        return f"{value:.1f}tok/s" if name == "rate" else f"{value:.3f}s"
    return str(value)
