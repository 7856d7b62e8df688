"""Brings caches back to where they were before a forward pass of several tokens, some of which were rejected.

Full KV is trimmed. A model that has any other cache (recurrent, windowed) goes back the whole way: those are put back
by reference, and the caller feeds the accepted tokens once more. Nothing is copied at either time: an array that is
referenced here is copied only if the pass writes into it in place.
"""

from copy import deepcopy
from typing import Any

from adapters.mlx.caches.classes import known_traits
from adapters.mlx.caches.kv_rows import KVRows
from adapters.mlx.caches.leaves import Caches, leaves
from domain.models.state_layout import StateKind


def refeeds(caches: Caches) -> bool:
    """True if some leaf cannot be trimmed, so that a rejection feeds the accepted tokens once more."""
    return not all(_can_trim(cache) for cache in leaves(caches))


class Rollback:
    """The state of a group's caches before a forward pass, which must not change membership meanwhile."""

    def __init__(self, caches: Caches, num_tokens: int) -> None:
        """`caches`: plain caches of one row at `num_tokens`, or batch caches, for which `num_tokens` is not used."""
        self._caches, self._num_tokens = caches, num_tokens
        self._kept = [(cache, deepcopy(cache)) for cache in leaves(caches) if not _can_trim(cache)]

    def undo(self, num_fed: int, num_kept: int) -> int:
        """Undoes a pass of `num_fed` tokens but for the first `num_kept`. Returns how many of these the caller has to
        feed again: all or none."""
        num_again = num_kept if self._kept and num_kept < num_fed else 0
        num_trimmed = num_fed - num_kept + num_again
        position = self._num_tokens + num_fed - num_trimmed
        for cache in leaves(self._caches):
            if _can_trim(cache):
                _trim(cache, num_trimmed, position)
        if num_trimmed:
            for cache, kept in self._kept:
                cache.__dict__.clear()
                cache.__dict__.update(kept.__dict__)
        return num_again


def _can_trim(cache: Any) -> bool:
    traits = known_traits(cache)
    return type(cache) is KVRows or traits.cut is not None


def _trim(cache: Any, num_tokens: int, position: int) -> None:
    if not num_tokens:
        return
    if type(cache) is KVRows:
        cache.trim(num_tokens)
        return
    traits = known_traits(cache)
    assert traits.kind is StateKind.SLICED
    assert traits.cut is not None
    if traits.tensors(cache)[0] is not None:  # else the model never used it
        traits.cut(cache, position)
