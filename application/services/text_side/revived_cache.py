"""The prefix cache of whichever engine there is. While there is none, ServerUnavailable: a statistic can wait."""

from collections.abc import Callable, Sequence

from application.ports.cache_stats import CacheStats, Cleared
from application.ports.engine import Engine
from domain.explanation import Explanation
from domain.ids import ModelId
from domain.prompt_content import EncodedPrompt


class RevivedCache:
    """An EngineCache. `engine`: the present one; raises ServerUnavailable."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def explain(self, model: ModelId, prompt: EncodedPrompt, salt: str) -> Explanation:
        return await self._engine().cache.explain(model, prompt, salt)

    async def num_stored(self, model: ModelId, prompt_ids: Sequence[int], salt: str) -> int | None:
        return await self._engine().cache.num_stored(model, prompt_ids, salt)

    async def settle(self, timeout_s: float) -> bool:
        return await self._engine().cache.settle(timeout_s)

    async def stats(self) -> CacheStats:
        return await self._engine().cache.stats()

    async def clear(self, model: str | None, salt: str | None) -> Cleared:
        return await self._engine().cache.clear(model, salt)


__all__ = ("RevivedCache",)
