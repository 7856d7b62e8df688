"""Attention over rows of different lengths, fused: what mlx-lm's own gives, of the cache's arrays alone."""

from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx.caches.fused_rows import FusedRows
from adapters.mlx.caches.layout import Caches
from adapters.mlx.caches.library import lib
from adapters.mlx.caches.rows import append_rows, keep_rows, make_room, merge
from adapters.mlx.file_limit import mlx_lm_module

HEADS, QUERY_HEADS, DIM = 2, 4, 16
LENGTHS = (40, 7, 255)


def plain(length: int, seed: int, dtype: mx.Dtype) -> Caches:
    cache = lib.KVCache()
    shape = (1, HEADS, length, DIM)
    keys, values = (mx.random.normal(shape, key=mx.random.key(2 * seed + one)).astype(dtype) for one in range(2))
    cache.update_and_fetch(keys, values)
    return [cache]


@pytest.fixture
def calls() -> list[Any]:
    return []


@pytest.fixture
def fused(calls: list[Any]) -> FusedRows:
    def otherwise(*arguments: Any, **named: Any) -> Any:
        calls.append(named["cache"])
        return mlx_lm_module("models.base").scaled_dot_product_attention(*arguments, **named)

    return FusedRows(otherwise)


def step(fused: FusedRows, batch: Caches, rows: int, dtype: mx.Dtype, turn: int) -> tuple[mx.array, mx.array]:
    """Fused attention of the next token, and mlx-lm's."""
    make_room(batch, 1)
    (cache,) = batch
    mask = cache.make_mask(1)
    new = mx.random.normal((rows, HEADS, 1, DIM), key=mx.random.key(100 + turn)).astype(dtype)
    queries = mx.random.normal((rows, QUERY_HEADS, 1, DIM), key=mx.random.key(200 + turn)).astype(dtype)
    keys, values = cache.update_and_fetch(new, -new)
    expected = mlx_lm_module("models.base").scaled_dot_product_attention(
        queries, keys, values, cache=cache, scale=0.3, mask=mask
    )
    return fused(queries, keys, values, cache=cache, scale=0.3, mask=mask), expected


def near(found: mx.array, expected: mx.array) -> bool:
    return (
        found.shape == expected.shape
        and mx.abs(found.astype(mx.float32) - expected.astype(mx.float32)).max().item() < 0.02
    )


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=["bfloat16", "float16"])
def test_it_is_what_mlx_lm_computes_whoever_comes_and_goes(fused: FusedRows, calls: list[Any], dtype: mx.Dtype) -> None:
    batch = merge([plain(length, seed, dtype) for seed, length in enumerate(LENGTHS)])
    assert all(near(*step(fused, batch, 3, dtype, turn)) for turn in range(3))  # a buffer grows
    keep_rows(batch, [0, 1])
    assert near(*step(fused, batch, 2, dtype, 3))
    append_rows(batch, 2, [plain(9, 8, dtype)], 3)
    assert near(*step(fused, batch, 3, dtype, 4))
    assert not calls


def test_what_it_does_not_know_is_left_to_mlx_lm(fused: FusedRows, calls: list[Any]) -> None:
    batch = merge([plain(length, seed, mx.bfloat16) for seed, length in enumerate((30, 8))])
    make_room(batch, 1)
    (cache,) = batch
    mask = cache.make_mask(1)
    new = mx.ones((2, HEADS, 1, DIM), mx.bfloat16)
    keys, values = cache.update_and_fetch(new, new)
    queries = mx.ones((2, QUERY_HEADS, 1, DIM), mx.bfloat16)
    others = [
        (queries, keys * 1, values, cache, mask),
        (queries, keys, values, lib.KVCache(), mask),
        (queries.astype(mx.float32), keys, values, cache, mask),
        (mx.repeat(queries, 2, axis=2), keys, values, cache, mask),
        (queries, keys, values, cache, None),
    ]
    for number, (asked, given_keys, given_values, of, held) in enumerate(others, 1):
        fused(asked, given_keys, given_values, cache=of, scale=1.0, mask=held)
        assert len(calls) == number
