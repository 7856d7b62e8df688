"""Decode steps are built and handed to the device by two threads in turns, beside the compute thread.

With a fast GPU the host is all that a step waits for: Python builds its graph, and MLX then hands that over operation
by operation, which takes longer and needs no interpreter. So one thread builds a step while the other still hands over
the one before it, and the compute thread reads and tells the one before that:

    first thread     build 1 | hand over 1 ........ | build 3 | wait | hand over 3 .....
    second thread              build 2 | wait       | hand over 2 ............ | build 4
    compute thread   wait    | wait                 | read 1, tell, plan | wait | read 2

The thread that built a graph also hands it over, since a graph is let go of while it is handed over: with one thread
for all of that, memory of the one was given back by the other, and both waited for the allocator (of the speed without
threads 1.13 with one, 1.44 with two; a prototype, one row on an H100).

What makes this safe, beside that a thread builds only while the compute thread waits for it:

* All three use one stream, which any thread may use, one at a time: nobody evaluates anything while a step is handed
  over (`arrays.evaluate` waits for `finish`), and the code of a network builds its graph without (`lazy_building`).
* MLX changes what it notes of an array when the array is used again, so what a step is read from is not what the next
  one is fed (`sampled`), and the state that steps pass on is of operations with one result.
"""

import atexit
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, NamedTuple

import mlx.core as mx

from adapters.mlx.arrays import awaits_turn, evaluate_after, hand_over

_mx: Any = mx

Build = Callable[[], Iterable[mx.array]]
"""Builds a graph; all that is to be computed of it."""

HandOver = Callable[[Iterable[mx.array]], None]


class QueuedStep:
    """A step that was built."""

    __slots__ = ("_error", "_finish", "_hand_over", "_is_handed_over")

    def __init__(self, hand_over: HandOver, finish: Callable[[], None]) -> None:
        self._hand_over, self._finish = hand_over, finish
        self._is_handed_over = False
        self._error = ""

    def wait(self) -> None:
        """Until it is handed over. Compute thread only. Raises RuntimeError with what handing it over raised."""
        if not self._is_handed_over:
            self._finish()
        if self._error:
            raise RuntimeError(self._error)

    def hand_over(self, arrays: Iterable[mx.array]) -> None:
        try:
            self._hand_over(arrays)
        except BaseException as error:
            self._error = str(error) or type(error).__name__  # its traceback would hold the graph
        finally:
            self._is_handed_over = True


class _Task(NamedTuple):
    """`built`: told once, None or what building raised. Of this task alone: who asked may have been interrupted."""

    build: Build
    step: QueuedStep
    built: "SimpleQueue[BaseException | None]"


class StepThreads:
    """To be made, used and closed by the compute thread, before it has made any array. One at a time."""

    def __init__(self, prepare: Callable[[], None] = lambda: None, hand_over: HandOver = hand_over) -> None:
        """`prepare`: called by each of the three threads; what it raises is raised here, and all is as before.
        `hand_over`: MLX's own, replaced by tests only. Raises RuntimeError where this thread has others already."""
        if awaits_turn():
            raise RuntimeError("this thread has others that hand over its steps")
        self._stream = _mx.new_thread_unsafe_stream(mx.default_device())
        self._prepare = prepare
        self._hand_over = hand_over
        self._turn = threading.Lock()
        """Held by who hands a step over, from the moment on that its thread has built it."""
        self._asked: tuple[SimpleQueue[_Task | None], ...] = (SimpleQueue(), SimpleQueue())
        self._next = 0
        self._is_closed = False
        self._owner = threading.get_ident()
        entered: SimpleQueue[BaseException | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, args=(asked, entered), name=f"cairn-step-{index}", daemon=True)
            for index, asked in enumerate(self._asked)
        ]
        self._stream_before = mx.default_stream(mx.default_device())
        for thread in self._threads:
            thread.start()
        errors = [entered.get() for _ in self._threads]
        try:
            for error in errors:
                if error is not None:
                    raise error
            self._enter()
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)  # a process that ends with one of these threads is aborted

    def queue(self, build: Build) -> QueuedStep:
        """Have a step built, and handed over while this thread goes on. The step before is handed over when this
        returns or raises: what `build` raised, RuntimeError after `close`."""
        if self._is_closed:
            raise RuntimeError("nobody builds steps any more")
        task = _Task(build, QueuedStep(self._hand_over, self.finish), SimpleQueue())
        self._asked[self._next].put(task)
        self._next = 1 - self._next
        error = task.built.get()
        if error is not None:
            try:
                raise error
            finally:
                del error  # which holds this frame, and what was built
        return task.step

    def finish(self) -> None:
        """Wait until every step is handed over."""
        with self._turn:
            pass

    def close(self) -> None:
        """Every step is handed over before, and computed. Repeating it does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        self.finish()
        try:
            mx.synchronize(self._stream)  # it is nobody's default from here on
        finally:
            for asked in self._asked:
                asked.put(None)
            for thread in self._threads:
                thread.join()
            if threading.get_ident() == self._owner:
                evaluate_after(None)
                mx.set_default_stream(self._stream_before)

    def _enter(self) -> None:
        mx.set_default_stream(self._stream)
        evaluate_after(self.finish)
        self._prepare()

    def _serve(self, asked: "SimpleQueue[_Task | None]", entered: "SimpleQueue[BaseException | None]") -> None:
        try:
            self._enter()
        except BaseException as error:  # or the compute thread would wait for ever
            entered.put(error)
            return
        entered.put(None)
        try:
            while (task := asked.get()) is not None:
                self._take(*task)
                del task  # or it would hold a model until the next step
        finally:
            mx.clear_streams()  # of its own

    def _take(self, build: Build, step: QueuedStep, built: "SimpleQueue[BaseException | None]") -> None:
        arrays: Iterable[mx.array] = ()
        error: BaseException | None = None
        try:
            arrays = build()
        except BaseException as raised:  # or the compute thread would wait for ever
            error = raised
        with self._turn:
            built.put(error)
            del error
            step.hand_over(arrays)


__all__ = ("Build", "HandOver", "QueuedStep", "StepThreads")
