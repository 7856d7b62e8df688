"""Decode steps are built and handed to the device by two threads in turns, beside the compute thread.

With a fast GPU the host is all that a step waits for: Python builds its graph, and MLX then hands that over operation
by operation, which takes longer and needs no interpreter. So one thread builds a step while the other still hands over
the one before it, and the compute thread reads and tells the one before that:

    first thread     build 1 | hand over 1 ........ | build 3 | wait | hand over 3 .....
    second thread              build 2 | wait       | hand over 2 ............ | build 4
    compute thread   wait    | wait                 | read 1, tell, plan | wait | read 2

The thread that built a graph also hands it over, since a graph is let go of while it is handed over: with one thread
for all of that, memory of the one was given back by the other, and both waited for the allocator (of the speed without
threads 1.13 with one, 1.44 with two; one row on an H100).

What makes this safe, beside that a thread builds only while the compute thread waits for it:

* All three use one stream, which any thread may use, one at a time: nobody evaluates anything while a step is handed
  over (`arrays.evaluate` waits for `finish`), and the code of a network builds its graph without (`lazy_building`).
* MLX changes what it notes of an array when the array is used again, so what a step is read from is not what the next
  one is fed (`sampled`), and the state that steps pass on is of operations with one result.
"""

import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

import mlx.core as mx

from adapters.mlx.arrays import evaluate_after, hand_over

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
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Until it is handed over. Compute thread only. Raises what handing it over raised."""
        if not self._is_handed_over:
            self._finish()
        if self._error is not None:
            raise self._error

    def hand_over(self, arrays: Iterable[mx.array]) -> None:
        try:
            self._hand_over(arrays)
        except BaseException as error:
            self._error = error.with_traceback(None)  # which would hold the graph
        finally:
            self._is_handed_over = True


class StepThreads:
    """To be made, used and closed by the compute thread, before it has made any array."""

    def __init__(self, prepare: Callable[[], None] = lambda: None, hand_over: HandOver = hand_over) -> None:
        """`prepare`: called by each of the three threads. `hand_over`: MLX's own, replaced by tests only."""
        self._stream = _mx.new_thread_unsafe_stream(mx.default_device())
        self._prepare = prepare
        self._hand_over = hand_over
        self._turn = threading.Lock()
        """Held by who hands a step over, from the moment on that its thread has built it."""
        self._built: SimpleQueue[BaseException | None] = SimpleQueue()
        self._asked: tuple[SimpleQueue[tuple[Build, QueuedStep] | None], ...] = (SimpleQueue(), SimpleQueue())
        self._next = 0
        self._threads = [
            threading.Thread(target=self._serve, args=(asked,), name=f"cairn-step-{index}", daemon=True)
            for index, asked in enumerate(self._asked)
        ]
        self._stream_before = mx.default_stream(mx.default_device())
        self._enter()
        for thread in self._threads:
            thread.start()

    def queue(self, build: Build) -> QueuedStep:
        """Have a step built, and handed over while this thread goes on. The step before is handed over when this
        returns or raises: what `build` raised."""
        step = QueuedStep(self._hand_over, self.finish)
        self._asked[self._next].put((build, step))
        self._next = 1 - self._next
        error = self._built.get()
        if error is not None:
            raise error
        return step

    def finish(self) -> None:
        """Wait until every step is handed over."""
        with self._turn:
            pass

    def close(self) -> None:
        """Once; every step is handed over before."""
        for asked in self._asked:
            asked.put(None)
        for thread in self._threads:
            thread.join()
        evaluate_after(None)
        mx.set_default_stream(self._stream_before)

    def _enter(self) -> None:
        mx.set_default_stream(self._stream)
        evaluate_after(self.finish)
        self._prepare()

    def _serve(self, asked: "SimpleQueue[tuple[Build, QueuedStep] | None]") -> None:
        self._enter()
        while (task := asked.get()) is not None:
            self._take(*task)
            del task  # or it would hold a model until the next step

    def _take(self, build: Build, step: QueuedStep) -> None:
        arrays: Iterable[mx.array] = ()
        error: BaseException | None = None
        try:
            arrays = build()
        except BaseException as raised:  # or the compute thread would wait for ever
            error = raised
        with self._turn:
            self._built.put(error)
            del error
            step.hand_over(arrays)


__all__ = ("Build", "HandOver", "QueuedStep", "StepThreads")
