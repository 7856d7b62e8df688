"""Emptying a prefix cache for good, or what it holds of one model or one tenant."""

from collections.abc import Callable
from functools import partial

from application.ports.block_store import EraseReport, StoreAdministration
from application.services.prefix.cache import Cleared, PrefixCache
from domain.namespace_choice import NamespaceChoice


class ClearCache:
    """Of a running server: memory, the queue and the store. Event loop."""

    def __init__(self, prefix_cache: PrefixCache) -> None:
        self._prefix_cache = prefix_cache

    async def __call__(self, model: str | None, salt: str | None) -> Cleared:
        """Of one model and one `cache_salt`, or of any (None). Waits until it is done, by the thread that keeps the
        store up. Raises StoreUnresponsive while the store is stuck."""
        return await self._prefix_cache.keep_store(partial(self._prefix_cache.clear, model, salt))


def clear_store(store: StoreAdministration, choice: NamespaceChoice) -> EraseReport:
    """Of a store that nobody else writes to."""
    includes: Callable[..., bool] | None = None if choice.is_everything else choice.includes
    return store.erase(includes)


__all__ = ("ClearCache", "clear_store")
