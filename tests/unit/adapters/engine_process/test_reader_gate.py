"""The compute thread waits while more is unsent than may be, and for nothing else."""

import threading

from adapters.engine_process.reports import ReaderGate
from tests.support.http.fake_service import wait_until
from tests.support.patience import PATIENCE_S

HIGH_BYTES, TURN_BYTES = 1_000, 300


class Unsent:
    """What turns tell, and a reader reads."""

    def __init__(self, gate: ReaderGate) -> None:
        self._gate = gate
        self._lock = threading.Lock()
        self.num_bytes = self.most_bytes = self.num_turns = 0
        gate.connect(lambda: self.num_bytes)

    def begin(self, num_turns: int) -> threading.Thread:
        """Of a compute thread."""

        def compute() -> None:
            for _ in range(num_turns):
                self._gate.wait()
                self._add(TURN_BYTES)
                self.num_turns += 1

        thread = threading.Thread(target=compute, daemon=True)
        thread.start()
        return thread

    def read(self, num_bytes: int) -> None:
        self._add(-min(num_bytes, self.num_bytes))
        self._gate.moved()

    def _add(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes
            self.most_bytes = max(self.most_bytes, self.num_bytes)


def test_a_reader_that_stops_bounds_what_is_unsent_and_gets_all_when_it_goes_on() -> None:
    gate = ReaderGate(HIGH_BYTES)
    unsent = Unsent(gate)
    thread = unsent.begin(100)
    wait_until(lambda: unsent.num_turns == 4, "a closed gate")
    unsent.read(TURN_BYTES)  # more than half is left: it stays closed
    assert (unsent.num_turns, unsent.num_bytes) == (4, 900)
    while thread.is_alive():
        unsent.read(100)
    assert unsent.num_turns == 100
    assert unsent.most_bytes <= HIGH_BYTES + TURN_BYTES


def test_at_the_end_nothing_waits_for_a_reader() -> None:
    gate = ReaderGate(HIGH_BYTES)
    unsent = Unsent(gate)
    thread = unsent.begin(100)
    wait_until(lambda: unsent.num_turns == 4, "a closed gate")
    gate.open_for_good()
    thread.join(PATIENCE_S)
    assert unsent.num_turns == 100
