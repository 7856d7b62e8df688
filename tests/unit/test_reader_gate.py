"""The compute thread never gets far ahead of an event loop that is busy with something else."""

import threading
from collections import deque
from collections.abc import Callable

from adapters.engine_process.reader_gate import MAX_TURNS, ReaderGate
from tests.support.fake_service import wait_until
from tests.support.patience import PATIENCE_S

NUM_TURNS = 1_000


class Loop:
    """What is to be called, in order. A batch of the compute thread's is one of them."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], object]] = deque()
        self.most_batches = 0
        self._num_given = self._num_taken = 0  # each of one thread

    @property
    def num_batches(self) -> int:
        return self._num_given - self._num_taken

    def hand_over(self) -> None:
        self._num_given += 1
        self.most_batches = max(self.most_batches, self.num_batches)
        self.calls.append(self._take)

    def turn(self) -> None:
        while self.calls:
            self.calls.popleft()()

    def _take(self) -> None:
        self._num_taken += 1


def computing(gate: ReaderGate, loop: Loop) -> threading.Thread:
    def compute() -> None:
        for _ in range(NUM_TURNS):
            gate.wait()
            loop.hand_over()

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    return thread


def test_what_the_loop_has_not_come_to_is_bounded_in_turns() -> None:
    gate, loop = ReaderGate(), Loop()
    gate.connect(loop.calls.append)
    thread = computing(gate, loop)
    wait_until(lambda: loop.num_batches >= MAX_TURNS, "batches")
    while thread.is_alive():  # a loop that is woken up by each of the calls
        loop.turn()
    assert loop.most_batches <= MAX_TURNS


def test_at_the_end_nothing_waits_for_a_loop_that_is_gone() -> None:
    def closed(_call: Callable[[], None]) -> None:
        raise RuntimeError("the loop is closed")

    gate, loop = ReaderGate(), Loop()
    gate.connect(closed)
    thread = computing(gate, loop)
    wait_until(lambda: loop.num_batches >= MAX_TURNS, "batches")
    gate.open_for_good()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
