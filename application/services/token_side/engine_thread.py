"""The engine on a thread of this process: the calls of the text side, and the busy loop that carries them out.

    event loop  --submit/cancel/load/unload-->  inbox  -->  compute thread: receive calls, step, load, deliver
                <--one batch a step, by one call_soon_threadsafe, or on the compute thread itself--

Everything that touches MLX happens in `_main` and below, on one non-daemon thread that ends by closing the backend.
Every call is carried out, answered or refused: a call that arrives before the inbox is closed is answered by the
thread, a later one by its caller. Only DeviceFailed and an exception of `make_backend` end the thread.

This is a service, not an adapter: it depends on no library, and what it hosts is the application's own token side.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from application.events import FaultObserved
from application.ports.compute import ComputeEngine, DeviceFailed
from application.ports.engine import EngineError, EngineModel, EngineStatus, StepBatch, Submission
from application.ports.vision import PreparedImage
from application.services.faults import bare, described
from application.services.token_side.cache_access import CacheAccess
from application.services.token_side.engine_loop import EngineLoop
from domain.errors import ComputeFailed, ServerUnavailable
from domain.ids import ModelId, RequestId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.request import FinishReason

T = TypeVar("T")

IDLE_WAKE_S, CALM_WAKE_S = 1.0, 5.0
"""Seconds between two wake-ups of an idle engine, which show that it is alive and deliver the events of workers; and
CALM_AFTER_S after the last work."""

CALM_AFTER_S = 35.0
"""The time in which what follows work has ended: records are written, and freed buffers are given back."""

HELD_WAKE_S = 0.005
"""The longest wait for a call while `EngineLoop.wakes_soon`; the end of a lookup wakes the thread as well."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call for the compute thread. A call without `result` has no waiting caller and runs even when the thread
    ends."""

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
        loop: EngineLoop,
        *,
        make_backend: Callable[[], ComputeEngine],
        close_cache: Callable[[], object] = lambda: None,
        hold: Callable[[], object] = lambda: None,
        delivers_directly: bool = False,
        computing: str = "",
        stuck_after_s: float | None = None,
    ) -> None:
        """`make_backend`: runs on the compute thread. `close_cache`: called once, in a worker, after the thread ended.
        `hold`: called on the compute thread before each step; it may block until the receiver keeps up, or the engine
        stops. `delivers_directly`: `receive` is called on the compute thread instead of the event loop, as in a process
        of its own; when the device fails, another engine resumes what is open, and nothing of it is reported.
        `computing`, `stuck_after_s`: as in EngineStatus."""
        self.cache = CacheAccess(loop.prefix_cache)
        self._loop, self._batcher, self._activity = loop, loop.batcher, loop.activity
        self._make_backend = make_backend
        self._close_cache = close_cache
        self._hold = hold
        self._delivers_directly = delivers_directly
        self._computing, self._stuck_after_s = computing, stuck_after_s
        self._status = loop.status()
        self._receive: Callable[[StepBatch], None] | None = None
        self._inbox: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._main, name="cairn-compute")
        self._has_work = False
        self._is_stopping = False
        self._is_closed = False  # guarded by the lock: the thread reads the inbox no longer
        self._is_cache_closed = False
        self._fault = ""
        self._num_calls = 0  # guarded by the lock
        loop.wake_with(self.wake)

    def start(self, receive: Callable[[StepBatch], None]) -> None:
        self._receive = receive
        loop = asyncio.get_running_loop()
        self._batcher.connect(
            partial(self._hand_over, receive if self._delivers_directly else partial(_call_soon, loop, receive))
        )
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
            receive(StepBatch(self._batcher.now_ns(), events=events))
        return not self._thread.is_alive()

    def status(self) -> EngineStatus:
        """The status that was published last, with what is known of the thread at any time."""
        last, activity = self._status, self._activity
        return replace(
            last,
            is_alive=self._thread.is_alive() and not self._is_stopping,
            last_progress_ns=activity.last_progress_ns,
            last_step_ns=activity.last_step_ns,
            num_calls=last.num_calls + self._num_calls,
            activity=activity.now,
            fault=self._fault,
            computing=self._computing,
            loading=self._loop.models.loading,
            stuck_after_s=self._stuck_after_s,
        )

    def submit(self, submission: Submission) -> None:
        if self._is_stopping or not self._put(_Call(partial(self._loop.add, submission))):
            raise self._refusal()

    def cancel(
        self,
        id: RequestId,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.CANCELLED,
        num_tokens: int | None = None,
    ) -> None:
        self._put(_Call(partial(self._loop.cancel, id, choice, reason=reason, num_tokens=num_tokens)))

    def provide_image(self, model: ModelId, salt: str, digest: bytes, image: PreparedImage | EngineError) -> None:
        self._put(_Call(partial(self._loop.images.provide, model, salt, digest, image)))

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel:
        result: Future[EngineModel] = Future()
        await self._ask(partial(self._loop.models.add, source, options, result))
        return await asyncio.wrap_future(result)

    async def unload(self, id: ModelId) -> None:
        await self._ask(partial(self._loop.unload, id))

    async def _ask(self, work: Callable[[], T]) -> T:
        """Runs `work` on the compute thread. Its events are delivered before this returns."""

        def run() -> T:
            try:
                return work()
            finally:
                self._publish()  # before the caller is answered
                self._batcher.deliver()

        result: Future[T] = Future()
        if self._is_stopping or not self._thread.is_alive() or not self._put(_Call(run, result)):
            raise self._refusal()
        return await asyncio.wrap_future(result)

    def wake(self) -> None:
        """Ends the thread's wait for calls: a lookup, a fetch, a grammar or a piece of a load is ready. Any thread."""
        self._put(_WAKE)

    def _put(self, call: _Call) -> bool:
        with self._lock:
            if self._is_closed:
                return False
            self._num_calls += call is not _WAKE
            self._inbox.put(call)
            return True

    def _refusal(self) -> ServerUnavailable:
        return ServerUnavailable(self._fault or "the engine is not running")

    # ---- the compute thread ------------------------------------------------------------------------------------

    def _main(self) -> None:
        backend: ComputeEngine | None = None
        loop = self._loop
        try:
            backend = self._make_backend()
            loop.models.connect(backend)
            loop.guard.clear_with(self._batcher.attempt("engine.memory")(backend.clear_cache))
            self._run_busy_loop()
        except Exception as error:  # the thread is lost: every later call is refused with this fault
            self._fault = f"the engine stopped: {described(error)}"
            self._batcher.fault("engine.thread", error)
        except DeviceFailed as error:
            self._lost(error)
        finally:
            self._is_stopping = True
            why = ServerUnavailable(self._fault or "the server is stopping")
            self._attempt_end(partial(self._refuse_calls, why))
            self._attempt_end(partial(loop.models.abandon_loads, why))
            self._attempt_end(partial(loop.fail_all, why))
            if backend is not None and not self._fault:
                self._attempt_end(loop.confirm)
            self._attempt_end(loop.unload_all)
            if backend is not None:
                self._attempt_end(backend.close)
            self._attempt_end(self._publish)

    def _lost(self, error: DeviceFailed) -> None:
        if self._fault:
            return
        self._fault = f"the engine stopped: {error}"
        self._batcher.emit(FaultObserved("engine.device", str(error), self._batcher.now_ns()))
        with self._batcher.attempt("engine.end"):
            self._loop.lose(is_resumed=self._delivers_directly)

    def _attempt_end(self, work: Callable[[], object]) -> None:
        try:
            with self._batcher.attempt("engine.end"):
                work()
        except DeviceFailed as error:
            self._lost(error)

    def _publish(self) -> None:
        """Replaces the status that other threads read: before a batch leaves, after a call, and after a round without a
        step."""
        self._status = self._loop.status()

    def _hand_over(self, receive: Callable[[StepBatch], None], batch: StepBatch) -> None:
        self._publish()
        receive(batch)

    def _run_busy_loop(self) -> None:
        """Receives calls, runs a step, advances a load and delivers the results, until the engine stops."""
        loop, activity = self._loop, self._activity
        while not self._is_stopping:
            activity.begin("hold")
            self._hold()
            self._receive_calls()
            has_stepped = loop.is_busy and not self._is_stopping and self._step()
            activity.begin("load")
            has_loaded = not self._is_stopping and loop.models.advance()
            if not loop.is_busy:
                activity.begin("rest")
                with self._batcher.attempt("engine.memory"):
                    loop.plan_idle()
            self._has_work = has_stepped or has_loaded
            if self._has_work:
                activity.progress()
            if has_loaded or not (has_stepped and loop.is_busy):  # a step has published with its batch
                self._publish()
            self._batcher.deliver()

    def _receive_calls(self) -> None:
        """Runs the calls in the inbox; waits for one if the last round had nothing to do."""
        self._activity.begin("idle")
        with suppress(queue.Empty):
            timeout_s = HELD_WAKE_S if self._loop.wakes_soon else CALM_WAKE_S if self._is_calm else IDLE_WAKE_S
            call = self._inbox.get(block=not self._has_work, timeout=timeout_s)
            while True:
                if call is not _WAKE:
                    self._run_call(call)
                call = self._inbox.get_nowait()

    @property
    def _is_calm(self) -> bool:
        """Nothing is open, and the last work ended long ago."""
        is_idle = not (self._loop.is_busy or self._loop.models.num_loading)
        return is_idle and self._batcher.now_ns() - self._activity.last_step_ns >= CALM_AFTER_S * 1e9

    def _run_call(self, call: _Call) -> None:
        self._activity.progress()  # this call has waited for nothing yet
        self._activity.begin("call")
        try:
            with self._batcher.attempt("engine.call"):
                call.run()
        except DeviceFailed as error:
            self._lost(error)
            if call.result is not None:
                call.result.set_exception(ServerUnavailable(self._fault))
            raise
        self._publish()
        with self._lock:
            self._num_calls -= 1
        self._activity.progress()

    def _step(self) -> bool:
        try:
            return self._loop.step()
        except Exception as error:  # of no single sequence: what the open ones hold is unknown
            self._batcher.fault("engine.step", error)
            self._loop.fail_all(ComputeFailed(f"a step of the engine failed: {described(error)}"))
            return True

    def _refuse_calls(self, error: ServerUnavailable) -> None:
        """Closes the inbox and answers every call in it, so that no caller waits for a thread that has ended."""
        with self._lock:
            self._is_closed = True
        while True:
            try:
                call = self._inbox.get_nowait()
            except queue.Empty:
                return
            if call.result is None:
                with self._batcher.attempt("engine.call"):
                    call.work()
            elif call.result.set_running_or_notify_cancel():
                call.result.set_exception(error)


def _call_soon(loop: asyncio.AbstractEventLoop, receive: Callable[[StepBatch], None], batch: StepBatch) -> None:
    with suppress(RuntimeError):  # the loop was closed, and there is no receiver any more
        loop.call_soon_threadsafe(receive, batch)
