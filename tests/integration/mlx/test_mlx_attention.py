"""Attention as on an NVIDIA GPU: what the exact one or mlx-lm's gives, chosen by lengths alone, within its bound."""

import sys
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import pytest

from adapters.mlx.caches.kv_rows import KVRows, lib
from adapters.mlx.caches.leaves import Caches, new_caches
from adapters.mlx.caches.rows import append_rows, keep_rows, make_room, merge
from adapters.mlx.cuda import attention as cuda_attention
from adapters.mlx.cuda.attention import (
    PASSES_TOGETHER,
    CudaAttention,
    ShortQueries,
    layer_bytes,
    verifying,
)
from adapters.mlx.runtime.arrays import evaluate
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from adapters.mlx.runtime.replaced import replace_attention
from tests.support.mlx import tiny_models

MOST = 1 << 20
GROUPS, DIM, QUERY_HEADS = 2, 16, 4
LENGTHS = (40, 7, 290, 90)
_NAME = "scaled_dot_product_attention"


@pytest.fixture
def calls() -> list[Any]:
    return []


@pytest.fixture
def attention(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> CudaAttention:
    def otherwise(*arguments: Any, **named: Any) -> Any:
        calls.append(named["cache"])
        return mlx_lm_module("models.base").scaled_dot_product_attention(*arguments, **named)

    monkeypatch.setattr(cuda_attention, "MOST_BYTES", MOST)
    return CudaAttention(otherwise)


@pytest.fixture
def replaced() -> Generator[CudaAttention]:
    """The replacement in all families; undone at the end, in families that are imported meanwhile, too."""
    before = getattr(mlx_lm_module("models.base"), _NAME)
    replacement = replace_attention(CudaAttention, CudaAttention)
    yield replacement
    for module in list(sys.modules.values()):
        if getattr(module, _NAME, None) is replacement:
            setattr(module, _NAME, before)


def random(seed: int, *shape: int, dtype: mx.Dtype = mx.bfloat16) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def asked(
    queries: int, keys: int, heads: int = 4, dtype: mx.Dtype = mx.bfloat16, seed: int = 1, spare: float = mx.nan
) -> tuple[mx.array, mx.array, mx.array, Any]:
    """Queries, and keys and values as a cache gives them; its free slots hold `spare`."""
    cache = lib.KVCache()
    for name in ("keys", "values"):
        tokens = random(seed + len(name), 1, GROUPS, keys, DIM, dtype=dtype)
        setattr(cache, name, mx.concatenate([tokens, mx.full((1, GROUPS, 77, DIM), spare, dtype)], axis=2))
    cache.offset = keys
    # A layer turns the axes of heads and tokens.
    turned = mx.swapaxes(random(seed, 1, queries, heads, DIM, dtype=dtype), 1, 2)
    return turned, *cache.keys_and_values(), cache


def exact(queries: mx.array, keys: mx.array, values: mx.array, scale: float, *, is_causal: bool) -> mx.array:
    """In float32, with a mask of every pair."""
    repeats, (num_queries, num_keys) = queries.shape[1] // keys.shape[1], (queries.shape[2], keys.shape[2])
    wide_keys, wide_values = (mx.repeat(one.astype(mx.float32), repeats, axis=1) for one in (keys, values))
    scores = scale * queries.astype(mx.float32) @ mx.swapaxes(wide_keys, -1, -2)
    seen = mx.arange(num_keys)[None] <= mx.arange(num_keys - num_queries, num_keys)[:, None]
    masked = mx.where(seen, scores, -mx.inf) if is_causal else scores
    return mx.softmax(masked, axis=-1) @ wide_values


def apart(found: mx.array, expected: mx.array) -> float:
    assert found.shape == expected.shape
    return cast(float, mx.abs(found.astype(mx.float32) - expected.astype(mx.float32)).max().item())


def short(given: tuple[mx.array, mx.array, mx.array, Any], way: ShortQueries | None = None) -> mx.array:
    found = (way or ShortQueries()).attend(*given[:3], 0.3, "causal")
    assert found is not None
    return found


def mean_apart(found: mx.array, expected: mx.array) -> float:
    return cast(float, mx.abs(found.astype(mx.float32) - expected).mean().item())


def by_hand(queries: mx.array, keys: mx.array, values: mx.array, scale: float, scores_type: mx.Dtype) -> mx.array:
    """A query at a time; scores, their softmax and then all rounded as said."""
    rows, repeats, before = list[mx.array](), queries.shape[1] // keys.shape[1], keys.shape[2] - queries.shape[2]
    wide_keys, wide_values = (mx.repeat(one.astype(mx.float32), repeats, axis=1) for one in (keys, values))
    for index in range(queries.shape[2]):
        seen = before + index + 1
        one = queries[:, :, index, None].astype(mx.float32)
        scores = scale * mx.sum(one * wide_keys[:, :, :seen], axis=-1).astype(scores_type).astype(mx.float32)
        weights = mx.softmax(scores, axis=-1)[..., None]
        rows.append(mx.sum(weights * wide_values[:, :, :seen], axis=2, keepdims=True))
    return mx.concatenate(rows, axis=2).astype(queries.dtype)


@pytest.mark.parametrize(
    ("heads", "dtype"), [(2, mx.bfloat16), (8, mx.float16), (16, mx.bfloat16)], ids=["1", "4", "8"]
)
@pytest.mark.parametrize(("queries", "keys"), [(2, 2), (2, 3001), (3, 256), (16, 2000), (31, 31), (64, 1003)])
def test_short_queries_are_the_exact_attention_to_rounding(
    calls: list[Any], queries: int, keys: int, heads: int, dtype: mx.Dtype
) -> None:
    attention = CudaAttention(cast(Any, calls.append))
    for mask in ("causal", None):
        rows, held, values, cache = asked(queries, keys, heads, dtype)
        found = attention(rows, held, values, cache=cache, scale=0.3, mask=mask)
        assert found.dtype == dtype
        assert apart(found, exact(rows, held, values, 0.3, is_causal=mask is not None)) < 0.02
    assert not calls


@pytest.mark.parametrize("size", [1, 4, 10])
@pytest.mark.parametrize(("queries", "keys"), [(40, 40), (16, 800), (17, 803)])
def test_peaked_attention_is_as_right_as_scores_in_float32_make_it(size: int, queries: int, keys: int) -> None:
    given, held, values, cache = asked(queries, keys, heads=8)
    peaked, scale = given * size, 0.3
    expected = exact(peaked, held, values, scale, is_causal=True)
    found = short((peaked, held, values, cache))
    wide = mean_apart(by_hand(peaked, held, values, scale, mx.float32), expected)
    rounded = mean_apart(by_hand(peaked, held, values, scale, mx.bfloat16), expected)
    assert mean_apart(found, expected) <= 2 * wide
    assert size == 1 or mean_apart(found, expected) < rounded / 1.5


def test_what_is_multiplied_is_the_same_by_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device may drop all but ten bits of a float32's fraction before it multiplies."""
    product, seen = mx.addmm, list[mx.array]()

    def noted(c: mx.array, left: mx.array, right: mx.array, *, alpha: float) -> mx.array:
        seen.extend([left, right])
        return product(c, left, right, alpha=alpha)

    monkeypatch.setattr(mx, "addmm", noted)
    for dtype in (mx.bfloat16, mx.float16):
        evaluate([short(asked(17, 203, dtype=dtype))])
    assert len(seen) == 4
    for one in seen:
        assert one.dtype == mx.float32
        assert not mx.any(mx.contiguous(one).view(mx.uint32) & ((1 << 13) - 1)).item()


@pytest.mark.parametrize(
    ("queries", "keys", "heads"), [(500, 500, 8), (500, 501, 8), (20, 9000, 8), (21, 9001, 8), (300, 3001, 2)]
)
def test_a_layer_takes_what_the_bound_compares_and_not_much_less(queries: int, keys: int, heads: int) -> None:
    """On a CPU, where one operation after another gives back what it read. A hundredth: places of tokens, which are
    numbers themselves, and pages."""
    given = asked(queries, keys, heads)
    evaluate([*given[:3], given[3].keys, given[3].values])
    mx.synchronize()
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    found = short(given)
    evaluate([found])
    taken, counted = mx.get_peak_memory() - held - found.nbytes, layer_bytes(*given[:3])
    assert 0.6 * counted < taken <= 1.01 * counted


def test_other_lengths_in_between_change_nothing(attention: CudaAttention) -> None:
    *given, cache = asked(16, 500)
    first = attention(*given, cache=cache, scale=0.3, mask="causal")
    for queries, keys, dtype in ((17, 500, mx.bfloat16), (16, 900, mx.bfloat16), (16, 500, mx.float16)):
        *others, other = asked(queries, keys, dtype=dtype)
        attention(*others, cache=other, scale=0.3, mask="causal")
    assert mx.array_equal(attention(*given, cache=cache, scale=0.3, mask="causal"), first).item()


def test_lengths_beyond_the_rule_are_left_to_mlx_lm(attention: CudaAttention, calls: list[Any]) -> None:
    """A pair takes 34 bytes (four heads of scores and weights, two rows of the mask), a key 256: 4,096 keys without any
    pairs are a MiB."""
    short = [(2, 2), (2, 3232), (64, 416), (64, 413), (160, 160), (120, 224), (13, 1488)]
    long = [(1, 300), (256, 300), (512, 512), (2, 3233), (64, 417), (177, 177), (2, 60_000)]
    for lengths, expected in ((short, 0), (long, len(long))):
        for queries, keys in lengths:
            *given, cache = asked(queries, keys)
            attention(*given, cache=cache, scale=0.3, mask="causal" if queries > 1 else None)
        assert len(calls) == expected


@pytest.mark.parametrize(("queries", "keys"), [(2, 30), (5, 3233), (17, 400)])
def test_a_verification_is_fused_over_the_whole_buffer(
    attention: CudaAttention, calls: list[Any], queries: int, keys: int
) -> None:
    """And only within `verifying`. Free slots hold what was rejected before."""
    *given, cache = asked(queries, keys, spare=9.0)
    with verifying(True):
        assert attention.is_verifying
        found = attention(*given, cache=cache, scale=0.3, mask="causal")
    assert not attention.is_verifying
    assert not calls
    assert apart(found, exact(*given, 0.3, is_causal=True)) < 0.02


def test_a_verification_of_rows_sees_their_masks(attention: CudaAttention) -> None:
    """Two rows, the shorter one padded on the left."""
    first, second = (asked(size, size, seed=size, spare=9.0)[3] for size in (40, 30))
    rows = KVRows(first)
    rows.append([second], 2)
    mask = rows.make_mask(3)
    keys, values = rows.update_and_fetch(random(1, 2, GROUPS, 3, DIM), random(2, 2, GROUPS, 3, DIM))
    queries = random(3, 2, 4, 3, DIM)
    with verifying(True):
        found = attention(queries, keys, values, cache=rows, scale=0.3, mask=mask)
    repeats = queries.shape[1] // keys.shape[1]
    wide = [mx.repeat(one.astype(mx.float32), repeats, axis=1) for one in (keys, values)]
    scores = 0.3 * queries.astype(mx.float32) @ mx.swapaxes(wide[0], -1, -2)
    expected = mx.softmax(mx.where(mask, scores, -mx.inf), axis=-1) @ wide[1]
    assert apart(found, expected) < 0.02


def test_queries_of_another_kind_are_left_to_mlx_lm(attention: CudaAttention, calls: list[Any]) -> None:
    queries, keys, values, cache = asked(6, 40)
    rotating, mask = lib.RotatingKVCache(100), mx.ones((6, 40), mx.bool_)
    both = [mx.concatenate([one, one]) for one in (queries, keys, values)]
    wide = [mx.zeros((1, heads, count, 136), mx.bfloat16) for heads, count in ((4, 6), (2, 40), (2, 40))]
    others: list[tuple[Any, Any, Any, Any, Any]] = [
        (queries, keys, values, rotating, "causal"),
        (queries, keys, values, None, "causal"),
        (queries, keys, values, cache, mask),
        (*both, cache, "causal"),
        (*wide, cache, "causal"),
        (*(one.astype(mx.float32) for one in (queries, keys, values)), cache, "causal"),  # type: ignore[list-item]
    ]
    for number, (given, given_keys, given_values, of, held) in enumerate(others, 1):
        attention(given, given_keys, given_values, cache=of, scale=0.3, mask=held)
        assert len(calls) == number
    attention(queries, keys, values, cache=cache, scale=0.3, mask="causal", sinks=mx.zeros(4, mx.bfloat16))
    assert len(calls) == len(others) + 1
    attention(queries, keys, values, cache=cache, scale=0.3, mask="causal")
    assert len(calls) == len(others) + 1


def states(network: Any, lengths: tuple[int, ...]) -> list[mx.array]:
    """Logits of each chunk of a prompt."""
    caches, found = new_caches(network), list[mx.array]()
    for number, length in enumerate(lengths):
        tokens = mx.array([[(17 * index + 5 * number) % 90 for index in range(length)]])
        found.append(network(tokens, cache=caches).astype(mx.float32))
        evaluate(found)
    return found


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "olmo3", "qwen3_5", "minicpm3"])
def test_prefill_is_that_of_mlx_lm_to_rounding(name: str, request: pytest.FixtureRequest) -> None:
    """Full attention, one of its own, windows and recurrent layers beside it, latents."""
    network, lengths = tiny_models.build(name, mx.bfloat16), (256, 37, 2, 61)
    before = states(network, lengths)
    request.getfixturevalue("replaced")
    after = states(network, lengths)
    assert all(apart(found, expected) < 0.1 for found, expected in zip(after, before, strict=True))
    assert mx.array_equal(after[0], before[0]).item(), "a regular chunk is computed as before"
    assert all(mx.array_equal(one, again).item() for one, again in zip(states(network, lengths), after, strict=True))


# ---- rows of different lengths --------------------------------------------------------------------------------------


def plain(length: int, seed: int, dtype: mx.Dtype = mx.bfloat16) -> Caches:
    cache = lib.KVCache()
    cache.update_and_fetch(*(random(2 * seed + one, 1, GROUPS, length, DIM, dtype=dtype) for one in range(2)))
    return [cache]


def near(found: mx.array, expected: mx.array) -> bool:
    return apart(found, expected) < 0.02


def step(attention: CudaAttention, batch: Caches, rows: int, dtype: mx.Dtype, turn: int) -> tuple[mx.array, mx.array]:
    """Fused attention of the next token, and mlx-lm's."""
    make_room(batch, 1)
    (cache,) = batch
    mask = cache.make_mask(1)
    new = random(100 + turn, rows, GROUPS, 1, DIM, dtype=dtype)
    queries = random(200 + turn, rows, QUERY_HEADS, 1, DIM, dtype=dtype)
    keys, values = cache.update_and_fetch(new, -new)
    expected = mlx_lm_module("models.base").scaled_dot_product_attention(
        queries, keys, values, cache=cache, scale=0.3, mask=mask
    )
    return attention(queries, keys, values, cache=cache, scale=0.3, mask=mask), expected


def together(batch: Caches, rows: int, dtype: mx.Dtype) -> None:
    """As many passes as it takes for these rows to count as ones that stay."""
    (cache,) = batch
    new = mx.ones((rows, GROUPS, 1, DIM), dtype)
    while cache.num_passes_together < PASSES_TOGETHER:
        make_room(batch, 1)
        cache.update_and_fetch(new, new)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=["bfloat16", "float16"])
def test_fused_rows_are_what_mlx_lm_computes_while_rows_join_and_leave(
    attention: CudaAttention, calls: list[Any], dtype: mx.Dtype
) -> None:
    batch = merge([plain(length, seed, dtype) for seed, length in enumerate(LENGTHS)])
    together(batch, 4, dtype)
    assert all(near(*step(attention, batch, 4, dtype, turn)) for turn in range(3))
    keep_rows(batch, [0, 1, 2])
    together(batch, 3, dtype)
    assert near(*step(attention, batch, 3, dtype, 3))
    append_rows(batch, 3, [plain(9, 8, dtype)], 4)
    together(batch, 4, dtype)
    assert near(*step(attention, batch, 4, dtype, 4))
    batch = merge([plain(60, seed, dtype) for seed in range(3)])
    together(batch, 3, dtype)
    assert batch[0].make_mask(1) is None, "rows of equal lengths need none"
    assert near(*step(attention, batch, 3, dtype, 5))
    assert not calls


def test_rows_that_come_and_go_are_left_to_mlx_lm(attention: CudaAttention, calls: list[Any]) -> None:
    """Each number of rows costs a plan, which a few steps do not pay."""
    batch = merge([plain(length, seed) for seed, length in enumerate(LENGTHS)])
    for turn in range(PASSES_TOGETHER):
        step(attention, batch, 4, mx.bfloat16, turn)
    assert len(calls) == PASSES_TOGETHER
    step(attention, batch, 4, mx.bfloat16, 50)
    assert len(calls) == PASSES_TOGETHER
    keep_rows(batch, [0, 1, 2])
    step(attention, batch, 3, mx.bfloat16, 51)
    append_rows(batch, 3, [plain(9, 8, mx.bfloat16)], 4)
    step(attention, batch, 4, mx.bfloat16, 52)
    assert len(calls) == PASSES_TOGETHER + 2


def test_stale_values_of_a_row_reach_no_other(attention: CudaAttention) -> None:
    """Beyond its tokens as well: a masked NaN is still one."""
    batch = merge([plain(length, seed) for seed, length in enumerate(LENGTHS)])
    (cache,) = batch
    keep_rows(batch, [0, 1, 2])
    assert cache.capacity == 4, "else there is no room left behind"
    cache.keys[3:], cache.values[3:] = mx.array(mx.nan), mx.array(mx.nan)
    append_rows(batch, 3, [plain(9, 8, mx.bfloat16)], 4)
    together(batch, 4, mx.bfloat16)
    found, _ = step(attention, batch, 4, mx.bfloat16, 60)
    assert mx.all(mx.isfinite(found)).item()


def test_heads_that_the_device_refuses_are_left_to_mlx_lm_for_good(
    attention: CudaAttention, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def refuse(queries: mx.array, *_: Any, **__: Any) -> mx.array:
        tried.append(queries.shape[0])
        raise RuntimeError("no plan")

    monkeypatch.setattr(cuda_attention, "_fast", SimpleNamespace(scaled_dot_product_attention=refuse))
    batch = merge([plain(length, seed) for seed, length in enumerate(LENGTHS)])
    together(batch, 4, mx.bfloat16)
    assert all(near(*step(attention, batch, 4, mx.bfloat16, turn)) for turn in range(3))
    assert len(tried) == 1
    assert len(calls) == 3


def test_rows_of_another_kind_are_left_to_mlx_lm(attention: CudaAttention, calls: list[Any]) -> None:
    batch = merge([plain(length, seed) for seed, length in enumerate((30, 8, 20))])
    together(batch, 3, mx.bfloat16)
    make_room(batch, 1)
    (cache,) = batch
    mask = cache.make_mask(1)
    new = mx.ones((3, GROUPS, 1, DIM), mx.bfloat16)
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
        attention(asked, given_keys, given_values, cache=of, scale=1.0, mask=held)
        assert len(calls) == number


def test_families_that_were_imported_before_attend_like_the_others(replaced: CudaAttention) -> None:
    base, family = (mlx_lm_module(f"models.{name}") for name in ("base", "qwen3"))
    assert replace_attention(CudaAttention, CudaAttention) is replaced
    assert family.scaled_dot_product_attention is base.scaled_dot_product_attention is replaced
