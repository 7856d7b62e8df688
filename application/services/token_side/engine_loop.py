"""The one loop that owns the compute thread: take commands, plan a step, run it, deliver its output once.

    any thread  --reserve/submit/cancel/load/unload-->  inbox  -->  compute thread: _main -> StepRunner.step

Submissions are bounded by `reserve`; every other command is small and rare. Everything that touches MLX happens in
`_main` and below, on one non-daemon thread that ends by closing the engine.

Every command is carried out, answered or refused: what arrives before the inbox is closed is answered by the thread,
what comes later by who calls. No exception of a neighbour ends the thread but that of the engine's making.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from application.ports.clock import Clock
from application.ports.compute import ComputeEngine
from application.ports.event_sink import EventSink
from application.ports.output_sink import OutputSink
from application.services.faults import bare, described
from application.services.prefix.cache import PrefixCache
from application.services.token_side.outlet import Outlet
from application.services.token_side.sequence_run import Submission
from application.services.token_side.step_runner import StepRunner
from domain.errors import ComputeFailed, QueueFull, ServerUnavailable
from domain.ids import ModelId, RequestId
from domain.model_card import ModelDescription, ModelSource
from domain.scheduling import StepLimits

T = TypeVar("T")

IDLE_WAKE_S = 1.0
"""How often an engine without work wakes up, so that a dead thread is told from an idle one."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A reading for health checks. `last_progress_ns`: when the last step, load or idle wake-up ended."""

    is_alive: bool
    is_busy: bool
    last_progress_ns: int
    num_waiting: int
    num_running: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class _Cancel:
    id: RequestId


@dataclass(frozen=True, slots=True)
class _Load:
    source: ModelSource
    result: "Future[ModelDescription]"


@dataclass(frozen=True, slots=True)
class _Unload:
    id: ModelId
    result: "Future[None]"


@dataclass(frozen=True, slots=True)
class _Wake:
    pass


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Command = Submission | _Cancel | _Load | _Unload | _Wake | _Stop


class EngineLoop:
    """Public methods: any thread."""

    def __init__(
        self,
        engine_factory: Callable[[], ComputeEngine],
        sink: OutputSink,
        events: EventSink,
        clock: Clock,
        prefix_cache: PrefixCache,
        limits: StepLimits,
        max_queue: int,
    ) -> None:
        """`engine_factory` runs on the compute thread. `max_queue`: requests waiting or being prepared."""
        self._engine_factory = engine_factory
        self._outlet = Outlet(sink, events, clock)
        self._clock = clock
        self._max_queue = max_queue
        self._inbox: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_reserved = 0
        self._runner = StepRunner(self._outlet, prefix_cache, limits, self.release_reservation)
        self._has_work = False
        prefix_cache.wake_with(self.wake)
        self._thread = threading.Thread(target=self._main, name="cairn-compute")
        self._is_stopping = False
        self._is_closed = False  # guarded by the lock: nobody looks into the inbox any more
        self._fault = ""
        self._last_progress_ns = clock.now_ns()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the loop: running requests fail with ServerUnavailable. False if the thread outlived the timeout."""
        if not self._thread.ident:
            return True
        self._is_stopping = True
        self._inbox.put(_Stop())
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def status(self) -> EngineStatus:
        alive = self._thread.is_alive()
        waiting, running = self._num_reserved, self._runner.num_running
        return EngineStatus(
            alive and not self._is_stopping, self._runner.is_busy, self._last_progress_ns, waiting, running, self._fault
        )

    def reserve(self) -> None:
        """Take a place in the queue before preparing a prompt. Raises QueueFull or ServerUnavailable."""
        with self._lock:
            if self._is_stopping or not self._thread.is_alive():
                raise ServerUnavailable(self._fault or "the engine is not running")
            if self._num_reserved >= self._max_queue:
                raise QueueFull(f"{self._num_reserved} requests are waiting already")
            self._num_reserved += 1

    def release_reservation(self) -> None:
        """Give the place back: the request was admitted, or came to nothing."""
        with self._lock:
            self._num_reserved -= 1

    def submit(self, submission: Submission) -> None:
        """Hand over a prepared request that holds a reservation; the engine gives the place back. Raises
        ServerUnavailable when the engine has ended: the place is still the caller's then."""
        if not self._put(submission):
            raise self._why_refused()

    def cancel(self, id: RequestId) -> None:
        """End a request within one step, whatever it is doing. Unknown or ended ids are ignored."""
        self._put(_Cancel(id))

    def load(self, source: ModelSource) -> "Future[ModelDescription]":
        """Load a model on the compute thread; other requests wait meanwhile. The future carries ModelLoadFailed, or
        ServerUnavailable when the engine has ended."""
        result: Future[ModelDescription] = Future()
        self._enqueue(_Load(source, result), result)
        return result

    def unload(self, id: ModelId) -> "Future[None]":
        """Unload a model; requests it still serves fail with ServerUnavailable."""
        result: Future[None] = Future()
        self._enqueue(_Unload(id, result), result)
        return result

    def wake(self) -> None:
        """Something that sequences wait for has arrived: look at them now."""
        self._put(_Wake())

    def _enqueue(self, command: _Load | _Unload, result: "Future[ModelDescription] | Future[None]") -> None:
        if self._is_stopping or not self._thread.is_alive() or not self._put(command):
            result.set_exception(self._why_refused())

    def _put(self, command: _Command) -> bool:
        with self._lock:
            if self._is_closed:
                return False
            self._inbox.put(command)
            return True

    def _why_refused(self) -> ServerUnavailable:
        return ServerUnavailable(self._fault or "the engine is not running")

    def _main(self) -> None:
        engine: ComputeEngine | None = None
        try:
            engine = self._engine_factory()
            self._serve(engine)
        except Exception as error:  # the thread is lost: say so everywhere instead of hanging
            self._fault = f"the engine stopped: {described(error)}"
            self._outlet.fault("engine.thread", error)
        finally:
            self._is_stopping = True
            why = ServerUnavailable(self._fault or "the server is stopping")
            self._outlet.attempt("engine.end", partial(self._refuse_all, why))
            self._outlet.attempt("engine.end", partial(self._runner.end_all, why))
            if engine is not None:
                self._outlet.attempt("engine.end", partial(self._runner.unload_all, engine))
                self._outlet.attempt("engine.close", engine.close)

    def _serve(self, engine: ComputeEngine) -> None:
        while not self._is_stopping:
            self._take_commands(engine)
            self._has_work = self._runner.is_busy and not self._is_stopping and self._step()
            self._last_progress_ns = self._clock.now_ns()

    def _step(self) -> bool:
        try:
            return self._runner.step()
        except Exception as error:  # of no one sequence: what they hold is not known any more
            self._outlet.fault("engine.step", error)
            self._runner.end_all(ComputeFailed(f"a step of the engine failed: {described(error)}"))
            return True

    def _take_commands(self, engine: ComputeEngine) -> None:
        try:
            command = self._inbox.get(block=not self._has_work, timeout=IDLE_WAKE_S)
            while True:
                self._obey(command, engine)
                command = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _obey(self, command: _Command, engine: ComputeEngine) -> None:
        match command:
            case Submission():
                self._runner.add(command)
            case _Cancel(id):
                self._runner.cancel(id)
            case _Load(source, result):
                _settle(result, lambda: self._runner.load(engine, source))
            case _Unload(id, result):
                _settle(result, lambda: self._runner.unload(engine, id))
            case _Wake():
                pass
            case _Stop():
                self._is_stopping = True

    def _refuse_all(self, error: ServerUnavailable) -> None:
        """Close the inbox and answer what is in it, so that nobody waits for a thread that is gone."""
        with self._lock:
            self._is_closed = True
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(command, Submission):
                self._runner.add(command)
            elif isinstance(command, _Load | _Unload) and command.result.set_running_or_notify_cancel():
                command.result.set_exception(error)


def _settle(result: "Future[T]", work: Callable[[], T]) -> None:
    if not result.set_running_or_notify_cancel():
        return
    try:
        result.set_result(work())
    except Exception as error:
        result.set_exception(bare(error))


__all__ = ("EngineLoop", "EngineStatus")
