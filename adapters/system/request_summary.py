"""The log line of a request with its cost and the time of each stage."""

from application.events import RequestEnded
from application.services.request_timelines import RequestTimeline, Stage
from domain.printable import printable

MAX_CHARS = 2_000


def summarise(timeline: RequestTimeline, event: RequestEnded, trace_id: str | None = None) -> str:
    """Key=value pairs; times in seconds; what did not happen is left out.

    `live`, `hot`, `store`: parts of `reused` by tier. `stopped`: the reason why no more was reused, `known`: the tokens
    whose blocks were stored, `diverged`: the first token that differs. `waited`: the reasons of waiting in the queue;
    `followed`: the request whose prefill of the same prefix it waited for. `drafted`: draft tokens that were verified,
    `accepted` of them. `images` have `image_tokens` of the prompt, `image_reused` of them reused; the tower passed over
    `seen` of them. `rate`: output tokens a second of decode."""
    stages = {stage.value: timeline.time_in_s(stage, event.at_ns) for stage in Stage}
    decode_s = stages[Stage.DECODING.value]
    usage, matched, images = event.usage, timeline.matched, timeline.images
    values: dict[str, str | int | None] = {
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
        "tower": _seconds(timeline.tower_ns / 1e9) if timeline.num_seen else None,
        "output": usage.completion_tokens,
        "drafted": usage.num_proposed or None,
        "accepted": usage.num_accepted if usage.num_proposed else None,
        **{name: _seconds(value) for name, value in stages.items()},
        "waited": ",".join(timeline.waited_for) or None,
        "followed": timeline.followed or None,
        "ttft": _seconds(timeline.time_to_first_token_s),
        "total": _seconds((event.at_ns - timeline.queued.at_ns) / 1e9),
        "rate": f"{usage.completion_tokens / decode_s:.1f}tok/s" if decode_s and usage.completion_tokens else None,
        "trace": trace_id,
        "reason": event.reason,
        "error": event.error_code,
    }
    line = " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
    return f"request {event.id} {line}" + (f": {one_line(event.error_message)}" if event.error_message else "")


def one_line(text: str) -> str:
    """`text` without line breaks and control codes, so that a message cannot pass for another line of the log."""
    return printable(" ".join(text[:MAX_CHARS].split()), MAX_CHARS)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}s"
