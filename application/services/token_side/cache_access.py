"""The text side's access to the prefix cache: explain a prompt, count stored tokens, settle, read figures, clear."""

import asyncio
from collections.abc import Sequence
from functools import partial

from application.ports.block_store import NamespaceUsage, StoreUsage
from application.ports.cache_stats import CacheStats, Cleared, StoredModel, StoreStats
from application.ports.tokenizer import EncodedPrompt
from application.services.prefix.cache import PrefixCache
from domain.errors import StoreUnresponsive
from domain.ids import ModelId
from domain.prefix.explanation import Explanation

CLEAR_TIMEOUT_S = 600.0
"""The longest wait for clearing, which may have to copy a large store; afterwards the volume counts as hung."""

POLL_S = 0.02
"""Seconds between two looks at the write queue. Polling occupies no thread, so any number of clients may wait."""


class CacheAccess:
    """An EngineCache over one prefix cache."""

    def __init__(self, prefix_cache: PrefixCache) -> None:
        self._prefix_cache = prefix_cache
        self._store = prefix_cache.tiers.store

    async def explain(self, model: ModelId, prompt: EncodedPrompt, salt: str) -> Explanation:
        explain = partial(self._prefix_cache.explain, model, prompt, salt)
        try:
            return await self._store.answer(explain)
        except StoreUnresponsive:
            return await asyncio.to_thread(partial(explain, asks_store=False))

    async def num_stored(self, model: ModelId, prompt: EncodedPrompt, salt: str) -> int | None:
        return await self._store.answer(partial(self._prefix_cache.num_stored, model, prompt, salt))

    async def settle(self, timeout_s: float) -> bool:
        writer = self._store.writer
        if writer is None:
            return True
        mark = writer.num_offers
        try:
            async with asyncio.timeout(timeout_s):
                while not writer.is_settled(mark):  # noqa: ASYNC110 - see POLL_S
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return False
        await self._store.await_upkeep(writer.store.flush)
        return True

    async def stats(self) -> CacheStats:
        writer, store, problem = self._store.writer, None, ""
        if writer is not None:
            try:
                store = _stats(await self._store.answer(writer.store.usage))
            except StoreUnresponsive as error:
                problem = error.message
        counts = writer.counts() if writer is not None else None
        tiers = self._prefix_cache.tiers
        shared = tiers.shared.stats() if tiers.shared is not None else None
        return CacheStats(tiers.hot.usage(), store, counts, problem, tiers.live.usage(), shared)

    async def clear(self, model: str | None, salt: str | None) -> Cleared:
        return await self._store.await_upkeep(partial(self._prefix_cache.clear, model, salt), CLEAR_TIMEOUT_S)

    async def clear_hot(self) -> Cleared:
        return await asyncio.to_thread(self._prefix_cache.tiers.hot.empty)


def _stats(usage: StoreUsage) -> StoreStats:
    by_model: dict[str, list[NamespaceUsage]] = {}
    for space in usage.namespaces:
        by_model.setdefault(space.info.model, []).append(space)
    models = tuple(_stored(model, spaces) for model, spaces in sorted(by_model.items()))
    return StoreStats(
        quota_bytes=usage.quota_bytes,
        stored_bytes=usage.stored_bytes,
        evicted=usage.evicted,
        faults=dict(usage.faults),
        models=models,
    )


def _stored(model: str, spaces: Sequence[NamespaceUsage]) -> StoredModel:
    return StoredModel(
        model=model,
        num_namespaces=len(spaces),
        num_blocks=sum(space.num_blocks for space in spaces),
        num_snapshots=sum(space.num_snapshots for space in spaces),
        raw_bytes=sum(space.raw_bytes for space in spaces),
        stored_bytes=sum(space.stored_bytes for space in spaces),
    )
