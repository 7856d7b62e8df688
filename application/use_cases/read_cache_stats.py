"""How full the prefix cache is: the hot tier, the store, and the queue between them."""

from dataclasses import dataclass

from application.ports.block_store import StoreAdministration, StoreUsage
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotUsage
from application.services.prefix.write_behind import QueueCounts, WriteBehind
from domain.errors import StoreUnresponsive


@dataclass(frozen=True, slots=True)
class CacheStats:
    """`store` and `queue` are None when nothing is persisted. `problem`: why `store` is None although there is one."""

    hot: HotUsage
    store: StoreUsage | None
    queue: QueueCounts | None
    problem: str = ""


class ReadCacheStats:
    def __init__(
        self, prefix_cache: PrefixCache, store: StoreAdministration | None, writer: WriteBehind | None
    ) -> None:
        self._prefix_cache = prefix_cache
        self._store = store
        self._writer = writer

    async def __call__(self) -> CacheStats:
        """The three are read one after the other, so that what is moving between them may be seen twice."""
        store, problem = None, ""
        if self._store is not None:
            try:
                store = await self._prefix_cache.read_store(self._store.usage)
            except StoreUnresponsive as error:
                problem = error.message
        counts = self._writer.counts() if self._writer is not None else None
        return CacheStats(self._prefix_cache.hot_usage(), store, counts, problem)


__all__ = ("CacheStats", "ReadCacheStats")
