"""An engine that says what memory it may hold, and keeps what was submitted: the rest of it is another engine's."""

from collections.abc import Callable
from dataclasses import replace

from application.ports.engine import Engine, EngineCache, EngineModel, EngineStatus, StepBatch, Submission
from domain.ids import ModelId, RequestId
from domain.memory.ledger import MemoryLimits, MemoryUse
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.request import FinishReason


class ShortMemory:
    """An Engine. `room_bytes`: what one request may take when nothing else runs; None: it says nothing of memory.
    `other_bytes`: of that, what the process itself was read to hold. `fixed_bytes`: the model's weights."""

    def __init__(self, engine: Engine, room_bytes: int | None, *, fixed_bytes: int = 1_000_000) -> None:
        self._engine = engine
        self.room_bytes = room_bytes
        self.other_bytes = 0
        self._fixed_bytes = fixed_bytes
        self.submissions: list[Submission] = []

    @property
    def cache(self) -> EngineCache:
        return self._engine.cache

    def start(self, receive: Callable[[StepBatch], None]) -> None:
        self._engine.start(receive)

    async def stop(self, timeout_s: float) -> bool:
        return await self._engine.stop(timeout_s)

    def status(self) -> EngineStatus:
        status = self._engine.status()
        if self.room_bytes is None:
            return status
        hard = self._fixed_bytes + self.room_bytes
        limits = MemoryLimits(hard, hard, hard, hard)
        ledger = MemoryUse(weight_bytes=self._fixed_bytes, other_bytes=self.other_bytes, limits=limits)
        return replace(status, limits=limits, ledger=ledger)

    def submit(self, submission: Submission) -> None:
        self.submissions.append(submission)
        self._engine.submit(submission)

    def cancel(
        self,
        id: RequestId,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.CANCELLED,
        num_tokens: int | None = None,
    ) -> None:
        self._engine.cancel(id, choice, reason=reason, num_tokens=num_tokens)

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel:
        return await self._engine.load(source, options)

    async def unload(self, id: ModelId) -> None:
        await self._engine.unload(id)
