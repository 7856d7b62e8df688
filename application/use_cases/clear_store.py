"""Emptying the store, or what it holds of one model."""

from collections.abc import Callable

from application.ports.block_store import BlockStore
from application.use_cases.walk_store import chosen
from domain.ids import BlockHash

_STEP = 16


def clear_store(store: BlockStore, model: str | None = None, progress: Callable[[int], None] = lambda _: None) -> int:
    """Returns how many records went; `progress` is told how many since it was last told."""
    removed = 0
    for usage in chosen(store, model):
        namespace = usage.info.namespace
        while first := store.children(namespace, BlockHash(namespace), _STEP):
            for key, _ in first:
                count = store.delete([key])
                removed += count
                progress(count)
            if all(store.lookup([key])[0].is_readable for key, _ in first):
                return removed  # the store refuses: what is left stays
        count = store.delete_namespace(namespace)
        removed += count
        progress(count)
    return removed


__all__ = ("clear_store",)
