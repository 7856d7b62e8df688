"""The watch over engine and event loop: a thread of its own that detects when either is stuck.

    every second, or every five: health of engine and loop ──► emit EngineStuck, and EngineRecovered afterwards
                       │ neither is stuck          │ the engine is stuck              │ the loop is, for EXIT_AFTER_S
                       ▼                           ▼                                  ▼
               notify the supervisor          `abandon`, once each time      flush the log, end the process

The thread takes no lock that another thread holds while it works, and emits events through a worker: an event sink that
hangs, which may be what blocks the loop, must not hang the watch. Native code that never releases the interpreter's
lock stops this thread too; the supervisor, which is not notified any more, restarts the process then.

A process that was paused (by a signal, or a suspended machine) is not stuck when it continues: after a pause of this
thread the times are counted anew.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import wait
from typing import TypeAlias

from application.events import EngineRecovered, EngineStuck, Event, FaultObserved
from application.ports.clock import Clock
from application.ports.engine import EngineStatus
from application.ports.event_sink import EventSink
from application.ports.supervision import NoServiceManager, ServiceManager, ThreadStacks
from application.services.faults import described
from application.services.lane import Lane
from domain.errors import ServerUnavailable
from domain.health.engine_health import ENDED, EVENT_LOOP, Activity, EngineHealth, engine_health

LOOK_S = 1.0
IDLE_LOOK_S = 5.0
"""The interval of the checks while no work is open and nothing is stuck; shorter than any time to be stuck."""

MIN_PAUSE_S = 10.0
"""The shortest pause of this thread that counts as a paused process; a busy machine causes shorter ones."""

LOOP_AFTER_S = 10.0
"""The time the event loop may be blocked before it counts as stuck; none of its callbacks takes long."""

EXIT_AFTER_S = 300.0
"""The time the event loop may be blocked before the process ends, so that its supervisor restarts it. A stuck or lost
engine does not end the process: it is replaced."""

FLUSH_S = 5.0
"""The time that flushing the log may delay the end of the process."""

EXIT_STUCK = 70
"""The exit status of a process that ends because it is stuck: EX_SOFTWARE of sysexits.h."""

REPORT_AGAIN_S = 300.0
"""The interval at which a state that stays stuck is reported again."""

_NAME = "cairn-engine-watch"

CallSoon: TypeAlias = Callable[[Callable[[], None]], object]
"""Schedules a call on the event loop, from any thread. Raises RuntimeError once the loop is closed."""


class EngineWatch:
    """`start` begins the thread, which calls `check` every second, or more rarely as it says."""

    def __init__(
        self,
        *,
        status: Callable[[], EngineStatus],
        clock: Clock,
        events: EventSink,
        stacks: ThreadStacks,
        stuck_after_s: float,
        supervisor: ServiceManager | None = None,
        give_up: Callable[[int], object] | None = None,
        abandon: Callable[[], None] | None = None,
        flush: Callable[[], object] = lambda: None,
        reporter: Lane | None = None,
    ) -> None:
        """`stuck_after_s`: as in `engine_health`, for an engine whose status does not state it. `give_up` ends the
        process at once with a status; None never ends it. `abandon` ends a stuck engine so that another one takes
        over; it is called on the loop, once each time. `flush` writes the log, in `reporter`, whose thread emits the
        events too."""
        self._status = status
        self._clock = clock
        self._events = events
        self._stacks = stacks
        self._stuck_after_s = stuck_after_s
        self._supervisor = supervisor or NoServiceManager()
        self._give_up = give_up
        self._abandon = abandon
        self._flush = flush
        self._reporter = reporter or Lane("engine-watch-reports", 1, max_pending=64)
        self._call_soon: CallSoon = lambda _call: None
        self._lag = LoopLag(clock, self._call_soon)
        self._reports = StuckReport(), StuckReport()
        self._checked_ns = self._counted_from_ns = clock.now_ns()
        self._has_ended = self._is_coming_stuck = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)

    def loop_lag_s(self) -> float:
        """The latest measured delay of the event loop, in seconds. Any thread."""
        return self._lag.lag_s

    def connect(self, call_soon: CallSoon) -> None:
        """Watches an event loop from now on."""
        self._call_soon = call_soon
        self._lag = LoopLag(self._clock, call_soon)

    def start(self) -> None:
        """Starts the thread."""
        self._checked_ns = self._counted_from_ns = self._clock.now_ns()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; reports under way are not waited for. Idempotent."""
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._reporter.close()

    def check(self) -> float:
        """Returns the seconds until the next check."""
        now_ns = self._clock.now_ns()
        self._note_pause(now_ns)
        self._lag.check()
        engine, loop = self._engine_health(now_ns), self._lag.health(now_ns)
        for report, health in zip(self._reports, (engine, loop), strict=True):
            for event in report.feed(health, now_ns):
                self._report(event)
        if not engine.is_stuck and not loop.is_stuck:
            self._supervisor.moving()
        elif loop.stuck_s(now_ns) >= EXIT_AFTER_S:
            self._leave()
        is_working = engine.num_waiting or engine.num_running or engine.num_calls
        return LOOK_S if is_working or self._has_ended or loop.is_stuck else IDLE_LOOK_S

    def _note_pause(self, now_ns: int) -> None:
        if now_ns - self._checked_ns > max(self._stuck_after_s / 2, MIN_PAUSE_S) * 1e9:
            self._counted_from_ns = now_ns
            self._lag = LoopLag(self._clock, self._call_soon)
        self._checked_ns = now_ns

    def _engine_health(self, now_ns: int) -> EngineHealth:
        status = self._status()
        after_s = status.stuck_after_s or self._stuck_after_s
        beat = status.heartbeat.counted_from(self._counted_from_ns)
        health = engine_health(beat, now_ns, after_s)
        had_ended, self._has_ended = self._has_ended, health.stuck_in == ENDED
        self._watch_start(beat.activity if self._has_ended else None, now_ns, after_s)
        if self._has_ended and not had_ended:  # another engine may take over at once: the next check reports it
            return dataclasses.replace(health, is_stuck=False, stuck_in="", stuck_since_ns=None, request_ids=())
        return health

    def _watch_start(self, doing: Activity | None, now_ns: int, after_s: float) -> None:
        """Replaces an engine that hangs before it has taken over; its loss reports it."""
        was_stuck = self._is_coming_stuck
        self._is_coming_stuck = doing is not None and now_ns - doing.since_ns >= after_s * 1e9
        if self._is_coming_stuck and not was_stuck:
            self._schedule_abandon()

    def _report(self, event: EngineStuck | EngineRecovered) -> None:
        if isinstance(event, EngineRecovered):
            self._emit(event)
            return
        # An ended engine has no stack.
        self._emit(event if event.stuck_in == ENDED else dataclasses.replace(event, stack=self._stacks.read()))
        if event.is_first and event.stuck_in not in (EVENT_LOOP, ENDED):
            self._schedule_abandon()

    def _schedule_abandon(self) -> None:
        if self._abandon is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the engine with it
                self._call_soon(self._abandon)

    def _emit(self, event: Event) -> None:
        with contextlib.suppress(ServerUnavailable):  # the sinks hang: only the supervisor can help
            self._reporter.submit(self._events.emit, event)

    def _leave(self) -> None:
        give_up = self._give_up
        if give_up is None:
            return
        with contextlib.suppress(ServerUnavailable):  # the sinks hang, and the log with them
            wait([self._reporter.submit(self._flush)], FLUSH_S)
        give_up(EXIT_STUCK)

    def _run(self) -> None:
        while True:
            pause_s = LOOK_S
            try:
                pause_s = self.check()
            except Exception as error:  # continue; the supervisor is not notified meanwhile
                self._emit(FaultObserved("engine.watch", described(error), self._clock.now_ns()))
            if self._ends.wait(pause_s):
                return


class LoopLag:
    """The delay of the event loop, measured by a callback that is scheduled now and then and timed when it runs. The
    watch's thread schedules it. While the loop is blocked, the age of the waiting callback is the delay."""

    def __init__(self, clock: Clock, call_soon: CallSoon) -> None:
        self._clock = clock
        self._call_soon = call_soon
        self._scheduled_ns: int | None = None
        self._last_lag_s = 0.0

    def check(self) -> None:
        """Schedules a callback, unless one is waiting."""
        if self._scheduled_ns is None:
            self._scheduled_ns = self._clock.now_ns()
            try:
                self._call_soon(self._called)
            except RuntimeError:  # the loop is closed
                self._scheduled_ns = None

    @property
    def lag_s(self) -> float:
        """The delay of the waiting callback or of the last one, whichever is longer. Any thread."""
        scheduled_ns = self._scheduled_ns
        waited_s = 0.0 if scheduled_ns is None else (self._clock.now_ns() - scheduled_ns) / 1e9
        return max(waited_s, self._last_lag_s)

    def health(self, now_ns: int) -> EngineHealth:
        """The health of the loop in the form of an engine's."""
        scheduled_ns = self._scheduled_ns
        is_stuck = scheduled_ns is not None and now_ns - scheduled_ns >= LOOP_AFTER_S * 1e9
        return EngineHealth(
            step_age_s=self.lag_s,
            is_stuck=is_stuck,
            stuck_in=EVENT_LOOP if is_stuck else "",
            stuck_since_ns=scheduled_ns if is_stuck else None,
        )

    def _called(self) -> None:
        scheduled_ns, self._scheduled_ns = self._scheduled_ns, None
        if scheduled_ns is not None:
            self._last_lag_s = (self._clock.now_ns() - scheduled_ns) / 1e9


class StuckReport:
    """The events about one thing that may be stuck: once when it is detected, once every REPORT_AGAIN_S while it lasts,
    and once when it is over. A change of the cause ends one state and begins another. Sans-io: `feed` at every
    check."""

    def __init__(self) -> None:
        self._open: tuple[str, int] | None = None
        self._reported_ns = 0

    def feed(self, health: EngineHealth, now_ns: int) -> list[EngineStuck | EngineRecovered]:
        """Returns the events of this check, with an empty `stack`."""
        found = (health.stuck_in, health.stuck_since_ns) if health.stuck_since_ns is not None else None
        events: list[EngineStuck | EngineRecovered] = []
        if self._open is not None and found != self._open:
            stuck_in, since_ns = self._open
            events.append(EngineRecovered(stuck_in, now_ns - since_ns, now_ns))
            self._open = None
        if found is not None and (self._open is None or now_ns - self._reported_ns >= REPORT_AGAIN_S * 1e9):
            stuck = EngineStuck(
                stuck_in=health.stuck_in,
                since_ns=found[1],
                num_waiting=health.num_waiting,
                num_running=health.num_running,
                num_calls=health.num_calls,
                request_ids=health.request_ids,
                is_first=self._open is None,
                at_ns=now_ns,
            )
            events.append(stuck)
            self._open, self._reported_ns = found, now_ns
        return events
