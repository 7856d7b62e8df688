"""How the engine moves, on the wire: for GET /health/engine and the admin page."""

from typing import Literal

from msgspec import Struct

from application.use_cases.check_health import Health


class OutstandingBody(Struct):
    """Choices that wait and run, and calls such as a load."""

    waiting: int
    running: int
    calls: int


class EngineBody(Struct):
    """`last_step_age_s`: since a step, a call or a piece of a load ended, against what is `outstanding`. `doing`: what
    the engine does now, for how long. `stuck_in`: what does not come to an end, an activity, `waiting` or `ended`; null
    when nothing is stuck. `requests`: of whom; null for who is no admin. `event_loop_lag_s`: how late the event loop
    was when it was last asked, once a second."""

    status: Literal["ok", "stuck", "not running"]
    last_step_age_s: float
    outstanding: OutstandingBody
    doing: str
    doing_s: float
    stuck_in: str | None
    stuck_s: float
    requests: list[str] | None
    event_loop_lag_s: float


def engine_body(health: Health, *, tells_all: bool) -> EngineBody:
    """`tells_all`: names requests."""
    found = health.engine
    return EngineBody(
        status="stuck" if found.is_stuck else "ok" if health.is_running else "not running",
        last_step_age_s=round(found.step_age_s, 3),
        outstanding=OutstandingBody(found.num_waiting, found.num_running, found.num_calls),
        doing=health.doing,
        doing_s=round(health.doing_s, 3),
        stuck_in=found.stuck_in or None,
        stuck_s=round(health.stuck_s, 3),
        requests=list(found.request_ids) if tells_all else None,
        event_loop_lag_s=round(health.loop_lag_s, 3),
    )


__all__ = ("EngineBody", "engine_body")
