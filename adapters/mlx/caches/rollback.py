"""Brings caches back to where they were before a forward pass of several tokens, some of which were rejected.

Full KV is trimmed. A model that has any other cache (recurrent, windowed) goes back the whole way: those are put back
by reference, and the caller feeds the accepted tokens once more. Nothing is copied at either time, but a pass computes
new arrays beside those that are referenced here (`MemoryShape.decode_bytes`).
"""

from copy import deepcopy
from typing import Any

from adapters.mlx.caches.classes import known_traits
from adapters.mlx.caches.kv_rows import KVRows
from adapters.mlx.caches.leaves import Caches, leaves


class Rollback:
    """The state of plain or batch caches before a forward pass. Rows must neither join nor leave meanwhile."""

    def __init__(self, caches: Caches) -> None:
        self._trimmed = [cache for cache in leaves(caches) if _can_trim(cache)]
        self._kept = [(cache, deepcopy(cache)) for cache in leaves(caches) if not _can_trim(cache)]

    def undo(self, num_fed: int, num_kept: int) -> int:
        """Undoes a pass of `num_fed` tokens but for the first `num_kept`. Returns how many of these the caller has to
        feed again: all or none."""
        if num_kept == num_fed:
            return 0
        num_again = num_kept if self._kept else 0
        for cache in self._trimmed:
            _trim(cache, num_fed - num_kept + num_again)
        for cache, kept in self._kept:
            cache.__dict__.clear()
            cache.__dict__.update(kept.__dict__)
        self._kept.clear()  # what is fed again is written in place
        return num_again


def _can_trim(cache: Any) -> bool:
    return isinstance(cache, KVRows) or known_traits(cache).cut is not None


def _trim(cache: Any, num_tokens: int) -> None:
    traits = known_traits(cache)
    if traits.tensors(cache)[0] is None:  # the model never used it
        return
    if traits.cut is None:
        cache.trim(num_tokens)
    else:
        traits.cut(cache, cache.offset - num_tokens)
