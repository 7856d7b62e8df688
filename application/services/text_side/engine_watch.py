"""Watches whether the engine moves, and the event loop, on a thread of its own that neither can stop.

    every second: rearm the last resort ──► health of engine and loop ──► tell what is stuck, and what is no longer
                                                 │ nothing is                  │ for too long, if that is set
                                                 ▼                             ▼
                                         tell the supervisor            last words, and the process ends

It takes no lock that another thread holds while it works, and tells nobody itself: a sink that hangs, which may be what
blocks the loop, must not hang who watches. What keeps all of Python from running, such as native code that does not let
the interpreter go, stops this thread too; the last resort and the supervisor, who hear nothing then, are for that.

A process that was stopped for a while (a signal, a suspended machine) is not stuck when it goes on: after a pause of
this thread's own the count begins anew.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass

from application.events import EngineRecovered, EngineStuck, Event, FaultObserved
from application.ports.clock import Clock
from application.ports.engine import EngineStatus
from application.ports.event_sink import EventSink
from application.ports.supervision import LastResort, NoLastResort, NoSupervisor, Supervisor, ThreadStacks
from application.services.faults import described
from application.services.lane import Lane
from application.services.text_side.loop_lag import CallSoon, LoopLag
from application.services.text_side.stuck_report import StuckReport
from domain.engine_health import ENDED, EVENT_LOOP, EngineHealth, Heartbeat, engine_health
from domain.errors import ServerUnavailable

LOOK_S = 1.0
MIN_PAUSE_S = 10 * LOOK_S
"""A shorter pause of this thread's own is a busy machine, however short a time is set."""

LAST_WORDS_S = 5.0
"""How long the log may take before the process ends; a reader that has gone must not keep it alive."""

EXIT_STUCK = 70
"""The process's status when it ends because it is stuck: EX_SOFTWARE of sysexits.h."""

_NAME = "cairn-engine-watch"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """`stuck_after_s`: as in `engine_health`, of an engine that does not say so itself. `exit_after_s`: how long
    anything may be stuck before the process ends; None: for ever. `loop_after_s`: how long the event loop may be
    blocked; nothing that it does takes long."""

    stuck_after_s: float
    exit_after_s: float | None = None
    loop_after_s: float = 10.0


class EngineWatch:
    """`look` is called by its thread alone, and by tests."""

    def __init__(
        self,
        *,
        status: Callable[[], EngineStatus],
        clock: Clock,
        events: EventSink,
        stacks: ThreadStacks,
        limits: WatchLimits,
        supervisor: Supervisor | None = None,
        last_resort: LastResort | None = None,
        give_up: Callable[[int], object] | None = None,
        abandon: Callable[[], None] | None = None,
        flush: Callable[[], object] = lambda: None,
        teller: Lane | None = None,
    ) -> None:
        """`give_up` ends the process with a status, at once; without it nothing does. `abandon` ends an engine that is
        stuck, for another one to take over, and is called on the loop, once each time. `flush` writes what was logged,
        in a thread of `teller`, which tells events too; tests give one."""
        self._status = status
        self._clock = clock
        self._events = events
        self._stacks = stacks
        self._limits = limits
        self._supervisor = supervisor or NoSupervisor()
        self._last_resort = last_resort or NoLastResort()
        self._give_up = give_up
        self._abandon = abandon
        self._flush = flush
        self._teller = teller or Lane("engine-watch-tells", 1, max_pending=64)
        self._call_soon: CallSoon = lambda _call: None
        self._lag = LoopLag(clock, self._call_soon)
        self._reports = StuckReport(), StuckReport()
        self._looked_ns = self._counted_from_ns = clock.now_ns()
        self._has_ended = self._is_coming_stuck = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)

    def loop_lag_s(self) -> float:
        """How late the event loop was when it was last asked, or is by now. Any thread."""
        return self._lag.lag_s

    def connect(self, call_soon: CallSoon) -> None:
        """Watch a loop from now on."""
        self._call_soon = call_soon
        self._lag = LoopLag(self._clock, call_soon)

    def start(self) -> None:
        """Begin to look."""
        self._looked_ns = self._counted_from_ns = self._clock.now_ns()
        self._thread.start()

    def stop(self) -> None:
        """Idempotent. What is being told is not waited for."""
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._last_resort.disarm()
        self._teller.close()

    def look(self) -> None:
        self._last_resort.rearm()
        now_ns = self._clock.now_ns()
        self._note_pause(now_ns)
        self._lag.look()
        found = self._engine_health(now_ns), self._lag.health(now_ns, self._limits.loop_after_s)
        for report, health in zip(self._reports, found, strict=True):
            for event in report.feed(health, now_ns):
                self._tell(event)
        after_s = self._limits.exit_after_s
        if not any(health.is_stuck for health in found):
            self._supervisor.moving()
        elif after_s is not None and max(health.stuck_s(now_ns) for health in found) >= after_s:
            self._leave()

    def _note_pause(self, now_ns: int) -> None:
        if now_ns - self._looked_ns > max(self._limits.stuck_after_s / 2, MIN_PAUSE_S) * 1e9:
            self._counted_from_ns = now_ns
            self._lag = LoopLag(self._clock, self._call_soon)
        self._looked_ns = now_ns

    def _engine_health(self, now_ns: int) -> EngineHealth:
        status = self._status()
        after_s = status.stuck_after_s or self._limits.stuck_after_s
        self._see_it_come(status.coming, now_ns, after_s)
        health = engine_health(status.heartbeat.counted_from(self._counted_from_ns), now_ns, after_s)
        had_ended, self._has_ended = self._has_ended, health.stuck_in == ENDED
        if self._has_ended and not had_ended:  # another one may be about to take over: the next look tells
            return dataclasses.replace(health, is_stuck=False, stuck_in="", stuck_since_ns=None, request_ids=())
        return health

    def _see_it_come(self, coming: Heartbeat | None, now_ns: int, after_s: float) -> None:
        """One that hangs before it has taken over is no better than one that hangs later; its own end tells of it."""
        was_stuck, self._is_coming_stuck = self._is_coming_stuck, False
        if coming is not None:
            health = engine_health(coming.counted_from(self._counted_from_ns), now_ns, after_s)
            self._is_coming_stuck = health.is_stuck
        if self._is_coming_stuck and not was_stuck:
            self._ask_to_abandon()

    def _tell(self, event: EngineStuck | EngineRecovered) -> None:
        if isinstance(event, EngineRecovered):
            self._emit(event)
            return
        self._emit(dataclasses.replace(event, stack=self._stacks.read()))
        if event.is_first and event.stuck_in not in (EVENT_LOOP, ENDED):
            self._ask_to_abandon()

    def _ask_to_abandon(self) -> None:
        if self._abandon is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the engine with it
                self._call_soon(self._abandon)

    def _emit(self, event: Event) -> None:
        try:
            self._teller.submit(self._events.emit, event)
        except ServerUnavailable:  # nobody takes what is told: the supervisor and the last resort are left
            return

    def _leave(self) -> None:
        give_up = self._give_up
        if give_up is None:
            return
        with contextlib.suppress(ServerUnavailable):  # what was told before waits in vain already
            wait([self._teller.submit(self._flush)], LAST_WORDS_S)
        give_up(EXIT_STUCK)

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception as error:  # it goes on looking; as nobody is told that all is well, others act if it stays
                self._emit(FaultObserved("engine.watch", described(error), self._clock.now_ns()))
            if self._ends.wait(LOOK_S):
                return


__all__ = ("EXIT_STUCK", "LAST_WORDS_S", "EngineWatch", "WatchLimits")
