"""Attention over rows of different lengths, fused: what mlx-lm's own gives, of the cache's arrays alone."""

from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import pytest

from adapters.mlx.caches.classes import lib
from adapters.mlx.caches.leaves import Caches
from adapters.mlx.caches.rows import append_rows, keep_rows, make_room, merge
from adapters.mlx.cuda import attention
from adapters.mlx.cuda.attention import PASSES_TOGETHER, CudaAttention, replace_attention
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from tests.support.mlx.replaced_attention import attention_given_back

HEADS, QUERY_HEADS, DIM = 2, 4, 16
LENGTHS = (40, 7, 290, 90)


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
def fused(calls: list[Any]) -> CudaAttention:
    def otherwise(*arguments: Any, **named: Any) -> Any:
        calls.append(named["cache"])
        return mlx_lm_module("models.base").scaled_dot_product_attention(*arguments, **named)

    return CudaAttention(otherwise)


def step(fused: CudaAttention, batch: Caches, rows: int, dtype: mx.Dtype, turn: int) -> tuple[mx.array, mx.array]:
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
    apart = mx.abs(found.astype(mx.float32) - expected.astype(mx.float32)).max()
    return found.shape == expected.shape and cast(float, apart.item()) < 0.02


def together(batch: Caches, rows: int, dtype: mx.Dtype) -> None:
    """As many passes as it takes for these rows to count as ones that stay."""
    (cache,) = batch
    new = mx.ones((rows, HEADS, 1, DIM), dtype)
    while cache.num_passes_together < PASSES_TOGETHER:
        make_room(batch, 1)
        cache.update_and_fetch(new, new)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=["bfloat16", "float16"])
def test_it_is_what_mlx_lm_computes_whoever_comes_and_goes(
    fused: CudaAttention, calls: list[Any], dtype: mx.Dtype
) -> None:
    batch = merge([plain(length, seed, dtype) for seed, length in enumerate(LENGTHS)])
    together(batch, 4, dtype)
    assert all(near(*step(fused, batch, 4, dtype, turn)) for turn in range(3))
    keep_rows(batch, [0, 1, 2])
    together(batch, 3, dtype)
    assert near(*step(fused, batch, 3, dtype, 3))
    append_rows(batch, 3, [plain(9, 8, dtype)], 4)
    together(batch, 4, dtype)
    assert near(*step(fused, batch, 4, dtype, 4))
    assert not calls


def test_rows_of_equal_lengths_need_no_mask(fused: CudaAttention, calls: list[Any]) -> None:
    batch = merge([plain(60, seed, mx.bfloat16) for seed in range(3)])
    together(batch, 3, mx.bfloat16)
    assert batch[0].make_mask(1) is None
    assert all(near(*step(fused, batch, 3, mx.bfloat16, turn)) for turn in range(3))
    assert not calls


def test_rows_that_come_and_go_are_left_to_mlx_lm(fused: CudaAttention, calls: list[Any]) -> None:
    """Each number of rows costs a plan, which a few steps do not pay."""
    batch = merge([plain(length, seed, mx.bfloat16) for seed, length in enumerate(LENGTHS)])
    for turn in range(PASSES_TOGETHER):
        step(fused, batch, 4, mx.bfloat16, turn)
    assert len(calls) == PASSES_TOGETHER
    step(fused, batch, 4, mx.bfloat16, 50)
    assert len(calls) == PASSES_TOGETHER
    keep_rows(batch, [0, 1, 2])
    step(fused, batch, 3, mx.bfloat16, 51)
    append_rows(batch, 3, [plain(9, 8, mx.bfloat16)], 4)
    step(fused, batch, 4, mx.bfloat16, 52)
    assert len(calls) == PASSES_TOGETHER + 2


def test_what_a_row_left_behind_reaches_nobody(fused: CudaAttention) -> None:
    """Beyond its tokens as well: a masked NaN is still one."""
    batch = merge([plain(length, seed, mx.bfloat16) for seed, length in enumerate(LENGTHS)])
    (cache,) = batch
    keep_rows(batch, [0, 1, 2])
    assert cache.capacity == 4, "else there is no room left behind"
    cache.keys[3:], cache.values[3:] = mx.array(mx.nan), mx.array(mx.nan)
    append_rows(batch, 3, [plain(9, 8, mx.bfloat16)], 4)
    together(batch, 4, mx.bfloat16)
    found, _ = step(fused, batch, 4, mx.bfloat16, 60)
    assert mx.all(mx.isfinite(found)).item()


def test_heads_that_the_device_refuses_are_left_to_mlx_lm_for_good(
    fused: CudaAttention, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def refuse(queries: mx.array, *_: Any, **__: Any) -> mx.array:
        tried.append(queries.shape[0])
        raise RuntimeError("no plan")

    monkeypatch.setattr(attention, "_fast", SimpleNamespace(scaled_dot_product_attention=refuse))
    batch = merge([plain(length, seed, mx.bfloat16) for seed, length in enumerate(LENGTHS)])
    together(batch, 4, mx.bfloat16)
    assert all(near(*step(fused, batch, 4, mx.bfloat16, turn)) for turn in range(3))
    assert len(tried) == 1
    assert len(calls) == 3


def test_what_it_does_not_know_is_left_to_mlx_lm(fused: CudaAttention, calls: list[Any]) -> None:
    batch = merge([plain(length, seed, mx.bfloat16) for seed, length in enumerate((30, 8, 20))])
    together(batch, 3, mx.bfloat16)
    make_room(batch, 1)
    (cache,) = batch
    mask = cache.make_mask(1)
    new = mx.ones((3, HEADS, 1, DIM), mx.bfloat16)
    keys, values = cache.update_and_fetch(new, new)
    queries = mx.ones((3, QUERY_HEADS, 1, DIM), mx.bfloat16)
    others = [
        (queries, keys * 1, values, cache, mask),
        (queries, keys, values, lib.KVCache(), mask),
        (queries.astype(mx.float32), keys, values, cache, mask),
        (mx.repeat(queries, 2, axis=2), keys, values, cache, mask),
        (queries, keys, values, cache, mask[:1]),
        (queries, keys, values, cache, mx.where(mask, 0, -mx.inf).astype(mx.bfloat16)),
    ]
    for number, (asked, given_keys, given_values, of, held) in enumerate(others, 1):
        fused(asked, given_keys, given_values, cache=of, scale=1.0, mask=held)
        assert len(calls) == number


def test_families_that_were_imported_before_attend_like_the_others() -> None:
    base, family = (mlx_lm_module(f"models.{name}") for name in ("base", "qwen3"))
    with attention_given_back():
        replaced = replace_attention()
        assert replace_attention() is replaced
        assert isinstance(replaced, CudaAttention)
        assert family.scaled_dot_product_attention is base.scaled_dot_product_attention is replaced
    assert family.scaled_dot_product_attention is base.scaled_dot_product_attention is not replaced
