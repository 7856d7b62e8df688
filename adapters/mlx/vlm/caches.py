"""mlx-vlm's cache objects as mlx-lm's.

mlx-vlm has a copy of each of mlx-lm's cache classes, with the same fields and other types. For some that
it has alone there is one of Cairn's; the others stay as they are, and so are unsupported.
"""

from collections.abc import Iterable
from typing import Any

from adapters.mlx.caches.arrays import RecurrentArrays
from adapters.mlx.caches.classes import lib
from adapters.mlx.caches.indexed import IndexedKV
from adapters.mlx.caches.leaves import Caches
from adapters.mlx.caches.pooled import PooledTokens


def plain_caches(count: int) -> Caches:
    """Full KV, one object a layer: what mlx-vlm uses for a network that makes none."""
    return [lib.KVCache() for _ in range(count)]


def translated(caches: Iterable[Any]) -> Caches:
    """Fresh caches of one sequence, by mlx-lm's classes."""
    return [_translated(cache) for cache in caches]


def _translated(cache: Any) -> Any:
    match type(cache).__name__:
        case "KVCache":
            return lib.KVCache()
        case "ConcatenateKVCache":
            return lib.ConcatenateKVCache()
        case "RotatingKVCache":
            return lib.RotatingKVCache(max_size=cache.max_size, keep=cache.keep)
        case "ChunkedKVCache":
            return lib.ChunkedKVCache(cache.chunk_size)
        case "ArraysCache":
            return RecurrentArrays(len(cache.cache))
        case "PoolingCache":
            return PooledTokens(cache.ratio)
        case "QSAKVCache":
            return IndexedKV()
        case "CacheList":
            return lib.CacheList(*translated(cache.caches))
        case _:
            return cache
