"""Lanes without threads: work is done at once by the submitting thread, or when the test asks for it."""

from typing import Any

from application.services.lane import Call, Lane
from application.services.prefix.store_tier import StoreRead


class InlineLane(Lane):
    """Does work at once, in the caller's thread."""

    def __init__(self) -> None:
        super().__init__("inline", 0)

    def _wake(self) -> None:
        self._do(self._waiting.pop())


class HeldLane(Lane):
    """Keeps work until `run`; for testing what happens in between. `max_pending`: as in Lane."""

    def __init__(self, max_pending: int | None = None) -> None:
        super().__init__("held", 0, max_pending=max_pending)
        self._held: list[Call[Any]] = []
        self._begun: set[Call[Any]] = set()

    def hang(self, count: int | None = None) -> int:
        """Begin reads that wait, all or so many, without an answer before `run`; returns how many that were."""
        reads = [call for call in self._held if isinstance(call, StoreRead) and not call.future.cancelled()]
        begun = [read for read in reads if read not in self._begun][:count]
        for read in begun:
            assert read.begin()
        self._begun.update(begun)
        return len(begun)

    def run(self, count: int | None = None) -> int:
        """Do what waits, all or so much, in order; returns how much that was."""
        doing, self._held = self._held[:count], self._held[len(self._held[:count]) :]
        for call in doing:
            if call in self._begun:
                self._begun.discard(call)
                call.finish()
            else:
                self._do(call)
        return len(doing)

    def close(self) -> None:
        for call in self._held:
            self._waiting.push(call)
        self._held.clear()
        super().close()

    def _wake(self) -> None:
        """It waits, in the order submitted."""
        self._held.append(self._waiting.pop())
