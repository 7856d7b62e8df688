"""One line that says what a request cost and where its time went, so that a slow one explains itself."""

from application.events import RequestEnded
from application.services.request_timelines import RequestTimeline, Stage
from domain.shown import shown

MAX_CHARS = 2_000


def summarise(timeline: RequestTimeline, event: RequestEnded, trace_id: str | None = None) -> str:
    """Key=value pairs; times in seconds; what did not happen is left out. `rate`: output tokens a second of decode."""
    stages = [(stage.value, timeline.time_in_s(stage, event.at_ns)) for stage in Stage]
    decode_s = stages[-1][1]
    num_output = event.usage.completion_tokens
    rate = num_output / decode_s if decode_s else None
    pairs: list[tuple[str, str | int | None]] = [
        ("model", timeline.model),
        ("key", timeline.client or None),
        ("prompt", timeline.num_prompt_tokens),
        ("reused", event.usage.reused_tokens),
        ("computed", timeline.num_computed_tokens),
        ("rewrites", ",".join(timeline.rewrites) or None),
        ("output", num_output),
        *((name, _seconds(value)) for name, value in stages),
        ("ttft", _seconds(timeline.time_to_first_token_s)),
        ("total", _seconds((event.at_ns - timeline.queued_ns) / 1e9)),
        ("rate", None if rate is None else f"{rate:.1f}tok/s"),
        ("trace", trace_id),
        ("reason", event.reason),
        ("error", event.error_code),
    ]
    line = " ".join(f"{name}={value}" for name, value in pairs if value is not None)
    return f"request {event.id} {line}" + (f": {one_line(event.error_message)}" if event.error_message else "")


def one_line(text: str) -> str:
    """`text` without line breaks and control codes, so that nobody's message can pass for a line of the log."""
    return shown(" ".join(text[:MAX_CHARS].split()), MAX_CHARS)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}s"


__all__ = ("one_line", "summarise")
