"""Rollback of each cache class: after a partly undone pass it holds what it would hold without the rejected tokens."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx.caches.arrays import RecurrentArrays
from adapters.mlx.caches.classes import known_classes, known_traits
from adapters.mlx.caches.indexed import IndexedKV
from adapters.mlx.caches.kv_rows import KVRows, lib
from adapters.mlx.caches.leaves import leaves
from adapters.mlx.caches.pooled import PooledTokens
from adapters.mlx.caches.quantised import QuantisedKV, QuantisedRows, sides_of
from adapters.mlx.caches.rollback import Rollback
from adapters.mlx.caches.rows import make_room
from domain.memory.kv_bits import KVBits
from tests.support.mlx.pooling import pooled

DIM, WINDOW = 32, 40

CLASSES: dict[str, Callable[[], Any]] = {
    "full": lib.KVCache,
    "concatenated": lib.ConcatenateKVCache,
    "quantised": lambda: lib.QuantizedKVCache(group_size=32, bits=8),
    "quantised by Cairn": lambda: QuantisedKV(sides_of(KVBits(8, 4), DIM, DIM)),
    "rotating": lambda: lib.RotatingKVCache(WINDOW),
    "chunked": lambda: lib.ChunkedKVCache(WINDOW),
    "recurrent": lambda: lib.ArraysCache(2),
    "recurrent of mlx-vlm": lambda: RecurrentArrays(2),
    "indexed": IndexedKV,
    "pooled": lambda: PooledTokens(4, overlaps=True),
    "composite": lambda: lib.CacheList(lib.ArraysCache(2), lib.KVCache()),
}
LENGTHS = (1, WINDOW - 2, WINDOW, WINDOW + 3, 251, 255, 256, 257, 509, 512)
"""Around the ends of windows and of buffers, which grow and shrink by 256."""


def feed(cache: Any, start: int, count: int, *, is_right: bool = True) -> list[mx.array]:
    """The next tokens; what attention over them sees, as far as it is within the window."""
    if isinstance(cache, lib.CacheList):
        return [array for one in cache.caches for array in feed(one, start, count, is_right=is_right)]
    values = mx.arange(start, start + count, dtype=mx.float32)[None, None, :, None]
    tokens = mx.broadcast_to(values if is_right else -1 - values, (1, 2, count, DIM)) / 1024
    if isinstance(cache, PooledTokens):
        found = pooled(cache, tokens[:, 0], start)
        return [found, *(array for array in (cache.open_kv, cache.last_kv) if array is not None)]
    if isinstance(cache, lib.ArraysCache):
        cache[0] = mx.zeros((1, 2)) if cache[0] is None else cache[0]
        for place in range(max(0, count - 8), count):
            cache[0][:] = cache[0] * 0.5 + tokens[:, :, place, 0]  # in place, as some families do
        return [mx.array(cache[0])]
    if isinstance(cache, lib.ChunkedKVCache):
        cache.maybe_trim_front()
    index = []
    if isinstance(cache, IndexedKV):
        index = [cache.update_indexer(tokens[:, 0], mx.arange(count)[None])[0][:, None]]
    found = (*cache.update_and_fetch(mx.contiguous(tokens), mx.contiguous(-tokens)), *index)
    arrays = [part for side in found for part in (side if isinstance(side, (tuple, list)) else (side,))]
    if isinstance(cache, lib.RotatingKVCache):
        return [mx.sort(array, axis=-2)[..., -min(start + count, WINDOW) :, :] for array in arrays[:1]]
    return [array[..., -min(start + count, WINDOW) :, :] for array in arrays]


def test_all_classes_are_here() -> None:
    """Batches are fed in `test_batch_rows`."""
    batches = {KVRows, QuantisedRows, lib.BatchKVCache, lib.BatchRotatingKVCache}
    assert {type(make()) for make in CLASSES.values()} == known_classes() - batches


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("width", "num_kept"), [(2, 1), (5, 1), (5, 3), (5, 5)])
def test_a_rejection_leaves_no_trace(name: str, length: int, width: int, num_kept: int) -> None:
    undone, plain = CLASSES[name](), CLASSES[name]()
    for cache in (undone, plain):
        feed(cache, 0, length)
    rollback = Rollback([undone])
    make_room([undone], width)
    feed(undone, length, num_kept)
    if width > num_kept:
        feed(undone, length + num_kept, width - num_kept, is_right=False)
    num_again = rollback.undo(width, num_kept)
    assert num_again == (
        num_kept if any(known_traits(leaf).cut is None for leaf in leaves([undone])) and num_kept < width else 0
    )
    if num_again:
        feed(undone, length, num_again)
    for place in range(num_kept):
        feed(plain, length + place, 1)
    for step in range(3):
        start = length + num_kept + step
        for mine, theirs in zip(feed(undone, start, 1), feed(plain, start, 1), strict=True):
            assert mx.allclose(mine, theirs, rtol=1e-5)
