"""A hook for the toy engine that stops it at one operation until the test says go."""

import threading
from collections import Counter

from domain.ids import SequenceId
from tests.support.patience import PATIENCE_S


class Gate:
    """Holds the compute thread when `operation` runs for the `count`-th time (from 0) for any one sequence."""

    def __init__(self, operation: str, count: int) -> None:
        self._operation = operation
        self._count = count
        self._reached = threading.Event()
        self._open = threading.Event()
        self.calls: Counter[tuple[str, SequenceId | None]] = Counter()

    def __call__(self, operation: str, sequence: SequenceId | None, count: int) -> None:
        self.calls[operation, sequence] += 1
        if operation == self._operation and count == self._count and not self._open.is_set():
            self._reached.set()
            assert self._open.wait(PATIENCE_S), "the gate was never opened"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE_S), f"{self._operation} number {self._count} never ran"

    def open(self) -> None:
        """For good."""
        self._open.set()

    def num_calls(self, operation: str) -> int:
        return sum(count for (name, _), count in self.calls.items() if name == operation)
