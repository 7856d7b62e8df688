"""The engine on a thread of this process: take calls, plan a step, run it, hand over what came of it, once.

    event loop  --submit/cancel/load/unload-->  inbox  -->  compute thread: _main -> StepRunner.step
                <--one batch a step, by one call_soon_threadsafe, or on the compute thread itself--

Everything that touches MLX happens in `_main` and below, on one non-daemon thread that ends by closing the backend.
Every call is carried out, answered or refused: what arrives before the inbox is closed is answered by the thread, what
comes later by who calls. No exception of a neighbour ends the thread but that of the backend's making.

It is a service and no adapter: it knows no library, and what it hosts is the application's own token side.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from application.ports.clock import Clock
from application.ports.compute import ComputeEngine
from application.ports.engine import EngineCache, EngineModel, EngineStatus, StepBatch, Submission
from application.ports.token_constraint import ConstraintCompiler
from application.services.faults import bare, described
from application.services.prefix.cache import PrefixCache
from application.services.token_side.event_batcher import EventBatcher, Pulse
from application.services.token_side.memory_guard import StepGuard, Unguarded
from application.services.token_side.model_loads import ModelLoads
from application.services.token_side.step_planner import QueueWaits
from application.services.token_side.step_runner import StepRunner
from domain.errors import ComputeFailed, ServerUnavailable
from domain.ids import ModelId, RequestId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.request import FinishReason
from domain.scheduling.plan_step import StepLimits

T = TypeVar("T")

IDLE_WAKE_S = 1.0
"""How often an engine without work wakes up: a dead thread is told from an idle one, and workers' events are handed
over."""

HELD_WAKE_S = 0.005
"""How long a prefill turn is held at most for a prompt that is being looked up; when that is done, it wakes us."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What the compute thread is to do. Without `result` nobody waits for it, and it is done however the end comes."""

    work: Callable[[], object]
    result: "Future[Any] | None" = None

    def run(self) -> None:
        if self.result is None:
            self.work()
        elif self.result.set_running_or_notify_cancel():
            try:
                self.result.set_result(self.work())
            except Exception as error:
                self.result.set_exception(bare(error))


_WAKE = _Call(lambda: None)


class EngineThread:
    """An Engine."""

    def __init__(
        self,
        *,
        make_backend: Callable[[], ComputeEngine],
        prefix_cache: PrefixCache,
        cache: EngineCache,
        limits: StepLimits,
        batcher: EventBatcher,
        clock: Clock,
        close_cache: Callable[[], object] = lambda: None,
        constraints: ConstraintCompiler | None = None,
        guard: StepGuard | None = None,
        waits: QueueWaits | None = None,
        hold: Callable[[], object] = lambda: None,
        tells_directly: bool = False,
        computing: str = "",
        stuck_after_s: float | None = None,
    ) -> None:
        """`make_backend` runs on the compute thread. `cache`: the way to `prefix_cache` for the text side. `batcher`:
        which `prefix_cache` and its workers emit to. `close_cache`: called once, in a worker, after the thread.
        `guard`: bounds what is computed at once; None: nothing does. `waits`: None for no end to waiting. `hold`:
        called on the compute thread before each step; it may wait for whoever receives, until the engine stops.
        `tells_directly`: `receive` is called on the compute thread, and no event loop is woken up; on the loop else.
        `computing`, `stuck_after_s`: as in EngineStatus."""
        self.cache = cache
        self._make_backend = make_backend
        self._close_cache = close_cache
        self._hold = hold
        self._computing, self._stuck_after_s = computing, stuck_after_s
        self._clock = clock
        self._limits = limits
        self._batcher = batcher
        self._tells_directly = tells_directly
        self._guard = guard or Unguarded()
        self._waits = waits or QueueWaits()
        self._pulse = Pulse(clock.now_ns)
        self._runner = StepRunner(batcher, prefix_cache, limits, constraints, self._guard, self._waits, self._pulse)
        self._loads = ModelLoads(batcher.deliver, self.wake)
        self._backend: ComputeEngine | None = None
        self._receive: Callable[[StepBatch], None] | None = None
        self._inbox: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._main, name="cairn-compute")
        self._has_work = False
        self._is_stopping = False
        self._is_closed = False  # guarded by the lock: nobody looks into the inbox any more
        self._is_cache_closed = False
        self._fault = ""
        self._num_calls = 0  # guarded by the lock
        prefix_cache.wake_with(self.wake)
        if constraints is not None:
            constraints.wake_with(self.wake)

    def start(self, receive: Callable[[StepBatch], None]) -> None:
        self._receive = receive
        loop = asyncio.get_running_loop()
        self._batcher.connect(receive if self._tells_directly else partial(_hand_over, loop, receive))
        self._thread.start()

    async def stop(self, timeout_s: float) -> bool:
        self._is_stopping = True
        if self._thread.ident is not None:
            self.wake()
            await asyncio.to_thread(self._thread.join, timeout_s)
        if not self._is_cache_closed:
            self._is_cache_closed = True
            await asyncio.to_thread(self._close_cache)
        if (receive := self._receive) is not None and (events := self._batcher.take_events()):
            receive(StepBatch(self._clock.now_ns(), events=events))
        return not self._thread.is_alive()

    def status(self) -> EngineStatus:
        runner = self._runner
        return EngineStatus(
            is_alive=self._thread.is_alive() and not self._is_stopping,
            is_busy=runner.is_busy,
            last_progress_ns=self._pulse.last_progress_ns,
            last_step_ns=self._pulse.last_step_ns,
            num_waiting=runner.num_waiting,
            num_running=runner.num_running,
            num_calls=self._num_calls + len(self._loads),
            activity=self._pulse.activity,
            memory=runner.memory,
            fault=self._fault,
            computing=self._computing,
            stuck_after_s=self._stuck_after_s,
            limits=self._guard.limits,
            ledger=self._guard.ledger,
            pressure=self._guard.pressure,
            waiting_for=self._waits.counts,
            loading=runner.loading,
            prefill_chunk=self._limits.prefill_budget,
        )

    def submit(self, submission: Submission) -> None:
        if self._is_stopping or not self._put(_Call(partial(self._runner.add, submission))):
            raise self._why_refused()

    def cancel(
        self,
        id: RequestId,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.CANCELLED,
        num_tokens: int | None = None,
    ) -> None:
        self._put(_Call(partial(self._runner.cancel, id, choice, reason=reason, num_tokens=num_tokens)))

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel:
        result: Future[EngineModel] = Future()
        await self._ask(lambda: self._loads.add(self._runner.load(self._made(), source, options), result))
        return await asyncio.wrap_future(result)

    async def unload(self, id: ModelId) -> None:
        await self._ask(lambda: self._runner.unload(self._made(), id))

    async def _ask(self, work: Callable[[], T]) -> T:
        """What came of it is handed over before the answer."""

        def tell() -> T:
            try:
                return work()
            finally:
                self._batcher.deliver()

        result: Future[T] = Future()
        if self._is_stopping or not self._thread.is_alive() or not self._put(_Call(tell, result)):
            raise self._why_refused()
        return await asyncio.wrap_future(result)

    def wake(self) -> None:
        """Something that sequences wait for has arrived, or the end: look now. Any thread."""
        self._put(_WAKE)

    def _put(self, call: _Call) -> bool:
        with self._lock:
            if self._is_closed:
                return False
            self._num_calls += call is not _WAKE
            self._inbox.put(call)
            return True

    def _why_refused(self) -> ServerUnavailable:
        return ServerUnavailable(self._fault or "the engine is not running")

    # ---- the compute thread ------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._backend = self._make_backend()
            self._guard.clear_with(partial(self._batcher.attempt, "engine.memory", self._backend.clear_cache))
            self._serve()
        except Exception as error:  # the thread is lost: say so everywhere instead of hanging
            self._fault = f"the engine stopped: {described(error)}"
            self._batcher.fault("engine.thread", error)
        finally:
            self._is_stopping = True
            why = ServerUnavailable(self._fault or "the server is stopping")
            self._batcher.attempt("engine.end", partial(self._refuse_all, why))
            self._batcher.attempt("engine.end", partial(self._loads.end, why))
            self._batcher.attempt("engine.end", partial(self._runner.end_all, why))
            if (backend := self._backend) is not None:
                self._batcher.attempt("engine.end", partial(self._runner.unload_all, backend))
                self._batcher.attempt("engine.close", backend.close)
                self._backend = None

    def _serve(self) -> None:
        while not self._is_stopping:
            self._pulse.begin("hold")
            self._hold()
            self._take_calls()
            has_stepped = self._runner.is_busy and not self._is_stopping and self._step()
            self._pulse.begin("load")
            has_loaded = not self._is_stopping and self._loads.advance()
            if not self._runner.is_busy:
                self._pulse.begin("rest")
                self._batcher.attempt("engine.memory", self._runner.rest)
            self._has_work = has_stepped or has_loaded
            if self._has_work:
                self._pulse.step()
            self._batcher.deliver()

    def _step(self) -> bool:
        try:
            return self._runner.step()
        except Exception as error:  # of no one sequence: what they hold is not known any more
            self._batcher.fault("engine.step", error)
            self._runner.end_all(ComputeFailed(f"a step of the engine failed: {described(error)}"))
            return True

    def _take_calls(self) -> None:
        self._pulse.begin("idle")
        timeout_s = HELD_WAKE_S if self._runner.is_held else IDLE_WAKE_S
        with suppress(queue.Empty):
            call = self._inbox.get(block=not self._has_work, timeout=timeout_s)
            while True:
                if call is not _WAKE:
                    self._take(call)
                call = self._inbox.get_nowait()

    def _take(self, call: _Call) -> None:
        self._pulse.step()  # who has just come has waited for nothing yet
        self._pulse.begin("call")
        self._batcher.attempt("engine.call", call.run)
        with self._lock:
            self._num_calls -= 1
        self._pulse.step()

    def _refuse_all(self, error: ServerUnavailable) -> None:
        """Close the inbox and answer what is in it, so that nobody waits for a thread that is gone."""
        with self._lock:
            self._is_closed = True
        while True:
            try:
                call = self._inbox.get_nowait()
            except queue.Empty:
                return
            if call.result is None:
                self._batcher.attempt("engine.call", call.work)
            elif call.result.set_running_or_notify_cancel():
                call.result.set_exception(error)

    def _made(self) -> ComputeEngine:
        assert self._backend is not None, "calls are run while there is one"
        return self._backend


def _hand_over(loop: asyncio.AbstractEventLoop, receive: Callable[[StepBatch], None], batch: StepBatch) -> None:
    with suppress(RuntimeError):  # the loop was closed: nobody is left to tell
        loop.call_soon_threadsafe(receive, batch)
