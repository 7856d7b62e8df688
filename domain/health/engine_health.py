"""The health of the engine, by the age of its last step and the work that is outstanding.

    the compute thread makes rounds ──────────────────────────► healthy, however old the last step is without open work
      │ but a choice is open, and no step, call or piece of a load ends for too long ───────► stuck in `waiting`
      └ or it makes no round for too long, and work is open ────────────────────────────────► stuck in its activity
    the thread ended by itself ───────────────────────────────► stuck at once in `ended`

Choices that wait for memory do not count: their waiting has a limit of its own. A load that waits for its files does
not count either. Times are monotonic nanoseconds of one clock.
"""

from dataclasses import dataclass, replace

from domain.ids import RequestId

WAITING = "waiting"
"""Stuck outside the compute thread: the open choices wait for an event that does not occur."""

ENDED = "ended"
"""The compute thread has ended without being asked to."""

EVENT_LOOP = "event loop"
"""The event loop is stuck, not the engine."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The present work of the compute thread. `kind`: one of a few names, such as `prefill`; `request_ids`: its
    requests."""

    kind: str
    since_ns: int
    request_ids: tuple[RequestId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The state of an engine. `last_step_ns`: the last end of a step, a call or a piece of a load, or the start of one;
    `last_progress_ns`: the last round of the thread, which has one every few seconds when it is idle. `num_blocked`:
    waiting choices that wait for memory. `num_calls`: loads under way, and calls that the thread has not begun.
    `fault`: why it ended by itself, or empty; with a fault it may be alive, while another engine is started."""

    last_step_ns: int
    last_progress_ns: int
    num_waiting: int = 0
    num_running: int = 0
    num_blocked: int = 0
    num_calls: int = 0
    activity: Activity | None = None
    is_alive: bool = True
    fault: str = ""

    def counted_from(self, since_ns: int) -> "Heartbeat":
        """Returns the same state, with times before `since_ns` moved there."""
        doing = self.activity
        return replace(
            self,
            last_step_ns=max(self.last_step_ns, since_ns),
            last_progress_ns=max(self.last_progress_ns, since_ns),
            activity=None if doing is None else replace(doing, since_ns=max(doing.since_ns, since_ns)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """The health of an engine. `step_age_s`: since a step, a call or a piece of a load ended. Counts: choices that wait
    and run, calls such as a load. `stuck_in`: an Activity's kind, WAITING, ENDED or EVENT_LOOP, since `stuck_since_ns`,
    for `request_ids`; empty and None when it is not stuck."""

    step_age_s: float
    num_waiting: int = 0
    num_running: int = 0
    num_calls: int = 0
    is_stuck: bool = False
    stuck_in: str = ""
    stuck_since_ns: int | None = None
    request_ids: tuple[RequestId, ...] = ()

    def stuck_s(self, now_ns: int) -> float:
        """The seconds for which the engine has been stuck; 0 if it is not."""
        return 0.0 if self.stuck_since_ns is None else max(0.0, (now_ns - self.stuck_since_ns) / 1e9)


def engine_health(beat: Heartbeat, now_ns: int, stuck_after_s: float) -> EngineHealth:
    """Returns the health at `now_ns`. `stuck_after_s`: longer than any step or piece of a load takes."""
    stuck_in, since_ns = _stuck_in(beat, now_ns, int(stuck_after_s * 1e9))
    return EngineHealth(
        step_age_s=max(0, now_ns - beat.last_step_ns) / 1e9,
        num_waiting=beat.num_waiting,
        num_running=beat.num_running,
        num_calls=beat.num_calls,
        is_stuck=bool(stuck_in),
        stuck_in=stuck_in,
        stuck_since_ns=since_ns if stuck_in else None,
        request_ids=beat.activity.request_ids if stuck_in and beat.activity is not None else (),
    )


def _stuck_in(beat: Heartbeat, now_ns: int, after_ns: int) -> tuple[str, int]:
    if beat.fault and not beat.is_alive:
        return ENDED, beat.last_progress_ns
    num_open = beat.num_waiting + beat.num_running
    if (num_open or beat.num_calls) and now_ns - beat.last_progress_ns >= after_ns:
        doing = beat.activity
        return (doing.kind, doing.since_ns) if doing is not None else (WAITING, beat.last_progress_ns)
    if num_open > beat.num_blocked and now_ns - beat.last_step_ns >= after_ns:
        return WAITING, beat.last_step_ns
    return "", 0
