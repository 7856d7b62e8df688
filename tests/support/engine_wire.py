"""Every value that crosses the engine port, through msgspec and back: what an engine in another process would do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from application.ports.cache_stats import CacheStats, Cleared
from application.ports.engine import Engine, EngineCache, EngineModel, EngineStatus, StepBatch, Submission
from application.ports.tokenizer import EncodedPrompt
from domain.explanation import Explanation
from domain.ids import ModelId, RequestId
from domain.model_card import LoadOptions, ModelSource

T = TypeVar("T")


def wired(value: T) -> T:
    """The value as the other side would get it; an AssertionError if that is another."""
    encoded = msgspec.msgpack.encode(value)
    assert not isinstance(value, StepBatch), "its parts are sent one by one: their types differ"
    decoded = msgspec.msgpack.decode(encoded, type=type(value))
    assert decoded == value
    assert type(decoded) is type(value)
    return decoded


def wired_batch(batch: StepBatch) -> StepBatch:
    return replace(
        batch,
        items=tuple((id, choice, wired(item)) for id, choice, item in batch.items),
        events=tuple(wired(event) for event in batch.events),
    )


class WiredCache:
    """An EngineCache whose questions and answers are sent."""

    def __init__(self, cache: EngineCache) -> None:
        self._cache = cache

    async def explain(self, model: ModelId, prompt: EncodedPrompt, salt: str) -> Explanation:
        return wired(await self._cache.explain(model, wired(prompt), salt))

    async def num_stored(self, model: ModelId, prompt_ids: Sequence[int], salt: str) -> int | None:
        return await self._cache.num_stored(model, wired(tuple(prompt_ids)), salt)

    async def settle(self, timeout_s: float) -> bool:
        return await self._cache.settle(timeout_s)

    async def stats(self) -> CacheStats:
        return wired(await self._cache.stats())

    async def clear(self, model: str | None, salt: str | None) -> Cleared:
        return wired(await self._cache.clear(model, salt))


class WiredEngine:
    """An Engine whose commands, answers and batches are sent."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.cache = WiredCache(engine.cache)

    def start(self, receive: Callable[[StepBatch], None]) -> None:
        self._engine.start(lambda batch: receive(wired_batch(batch)))

    async def stop(self, timeout_s: float) -> bool:
        return await self._engine.stop(timeout_s)

    def status(self) -> EngineStatus:
        return wired(self._engine.status())

    def submit(self, submission: Submission) -> None:
        self._engine.submit(wired(submission))

    def cancel(self, id: RequestId, choice: int | None = None, **how: Any) -> None:
        self._engine.cancel(id, choice, **how)

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel:
        return wired(await self._engine.load(wired(source), wired(options)))

    async def unload(self, id: ModelId) -> None:
        await self._engine.unload(id)


__all__ = ("WiredEngine", "wired", "wired_batch")
