"""An engine whose status states memory limits of the test, and that keeps submissions, around another engine."""

from dataclasses import replace
from typing import Any

from application.ports.engine import Engine, EngineStatus, Submission
from domain.memory.ledger import MemoryLedger, MemoryLimits


class ShortMemory:
    """An Engine. `room_bytes`: what one request may take when nothing else runs; None: it says nothing of memory.
    `other_bytes`: of that, what the process itself was read to hold. `fixed_bytes`: the model's weights."""

    def __init__(self, engine: Engine, room_bytes: int | None, *, fixed_bytes: int = 1_000_000) -> None:
        self._engine = engine
        self.room_bytes = room_bytes
        self.other_bytes = 0
        self._fixed_bytes = fixed_bytes
        self.submissions: list[Submission] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def status(self) -> EngineStatus:
        status = self._engine.status()
        if self.room_bytes is None:
            return status
        hard = self._fixed_bytes + self.room_bytes
        limits = MemoryLimits(hard, hard, hard, hard)
        ledger = MemoryLedger(weight_bytes=self._fixed_bytes, other_bytes=self.other_bytes, limits=limits)
        return replace(status, limits=limits, ledger=ledger)

    def submit(self, submission: Submission) -> None:
        self.submissions.append(submission)
        self._engine.submit(submission)
