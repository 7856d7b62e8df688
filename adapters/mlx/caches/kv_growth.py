"""Growth of one sequence's full KV, before a forward pass would let mlx-lm's cache do it: that copies all of it every
256 tokens, however long it is."""

from typing import Any

import mlx.core as mx

from adapters.mlx.caches.library import lib
from domain.memory.buffer_slots import buffer_slots


def grow(cache: Any, num_tokens: int) -> list[mx.array]:
    """Room for so many more tokens in a plain cache of full KV; its new arrays, lazy. Nothing where there is room, or
    where nothing was computed yet, and of every other class."""
    if type(cache) is not lib.KVCache or cache.keys is None or cache.offset + num_tokens <= cache.keys.shape[-2]:
        return []
    slots = buffer_slots(cache.offset + num_tokens, cache.step)
    held = (array[..., : cache.offset, :] for array in (cache.keys, cache.values))
    cache.keys, cache.values = (_with_slots(tokens, slots) for tokens in held)
    return [cache.keys, cache.values]


def _with_slots(tokens: mx.array, num_slots: int) -> mx.array:
    """A buffer that begins with these."""
    spare = (*tokens.shape[:2], num_slots - tokens.shape[2], tokens.shape[3])
    return mx.concatenate([tokens, mx.zeros(spare, tokens.dtype)], axis=-2)


__all__ = ("grow",)
