"""Attention over quantised keys and values: what the fused kernel gives for the dequantised ones, without them."""

import itertools
import sys
from collections.abc import Generator
from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx.caches.kv_rows import KVRows, lib
from adapters.mlx.caches.leaves import leaves, new_caches, quantise
from adapters.mlx.caches.quantised import QuantisedKV, sides_of
from adapters.mlx.caches.rows import make_room, merge
from adapters.mlx.quantised_attention import MOST_QUERIES, QuantisedAttention, attend_quantised, num_dequantised
from adapters.mlx.runtime.device import has_cuda
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from adapters.mlx.runtime.replaced import replace_attention
from domain.memory.kv_bits import KVBits
from tests.support.mlx.tiny_models import build, config_of, names

HEADS = ((8, 2, 64), (4, 4, 128), (6, 1, 24))
"""Query heads, key heads, width: the last is filled up to a group."""

LENGTHS: tuple[tuple[int, ...], ...] = ((300,), (5,), (90, 7, 41))
BITS = (KVBits(8, 8), KVBits(8, 4), KVBits(4, 4, group_size=32))


def random(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def rows_of(lengths: tuple[int, ...], bits: KVBits, groups: int, width: int) -> Any:
    rows = []
    for seed, length in enumerate(lengths):
        row = QuantisedKV(sides_of(bits, width, width))
        row.update_and_fetch(random(seed, 1, groups, length, width), random(seed + 50, 1, groups, length, width))
        rows.append([row])
    return rows[0][0] if len(rows) == 1 else merge(rows)[0]


@pytest.mark.parametrize("bits", BITS, ids=str)
@pytest.mark.parametrize(("heads", "groups", "width"), HEADS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_few_queries_see_what_the_dequantised_tokens_show(
    bits: KVBits, heads: int, groups: int, width: int, lengths: tuple[int, ...]
) -> None:
    for count, with_sinks in itertools.product((1, 3, MOST_QUERIES), (False, True)):
        cache, num_rows = rows_of(lengths, bits, groups, width), len(lengths)
        make_room([cache], count)
        mask = cache.make_mask(count, return_array=False, window_size=None)
        shape = num_rows, groups, count, width
        keys, values = cache.update_and_fetch(random(7, *shape), random(8, *shape))
        queries, sinks = random(9, num_rows, heads, count, width), random(10, heads) if with_sinks else None
        expected = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=width**-0.5, mask=mask, sinks=sinks
        )
        found = attend_quantised(queries, cache, width**-0.5, mask, sinks)
        assert mx.allclose(found, expected, atol=2e-5).item()


def test_masks_of_every_form_hide_the_same_tokens() -> None:
    cache = rows_of((40,), BITS[0], 2, 64)
    shape = 1, 2, 4, 64
    keys, values = cache.update_and_fetch(random(7, *shape), random(8, *shape))
    queries, seen = random(9, 1, 8, 4, 64), mx.arange(44) <= mx.arange(40, 44)[:, None]
    expected = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1.0, mask="causal")
    added = mx.where(seen, mx.array(0.0), mx.array(-mx.inf))
    wide = mx.broadcast_to(added, (1, 8, 4, 44))
    for mask in ("causal", seen, seen[None, None], added, wide[0], wide):
        assert mx.allclose(attend_quantised(queries, cache, 1.0, mask, None), expected, atol=2e-5).item()


@pytest.fixture
def attention() -> Generator[list[Any]]:
    """The caches whose attention is left to the fused kernel; mlx-lm's families are as before at the end."""
    base, name = mlx_lm_module("models.base"), "scaled_dot_product_attention"
    original, calls = getattr(base, name), list[Any]()

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(named["cache"])
        return mx.fast.scaled_dot_product_attention(
            *arguments, scale=named["scale"], mask=named["mask"], sinks=named["sinks"]
        )

    made = QuantisedAttention(counted)
    for module in list(sys.modules.values()):
        if getattr(module, name, None) is original:
            setattr(module, name, made)
    yield calls
    for module in list(sys.modules.values()):
        if getattr(module, name, None) is made:
            setattr(module, name, original)


@pytest.mark.skipif(has_cuda(), reason="the kernel there does not take heads so narrow")
def test_a_networks_decode_step_dequantises_nothing_and_its_prefill_does(attention: list[Any]) -> None:
    network = build("llama")
    quantise(network, KVBits(8, 8), has_latents=False)
    caches = new_caches(network)
    mx.eval(network(mx.arange(MOST_QUERIES + 1)[None], cache=caches))
    full = [cache for cache in leaves(caches) if type(cache) is QuantisedKV]
    assert full
    assert [cache for cache in attention if type(cache) is QuantisedKV] == full
    attention.clear()
    mx.eval(network(mx.array([[3]]), cache=caches))
    assert not [cache for cache in attention if type(cache) is QuantisedKV]


def test_arrays_that_a_cache_did_not_return_are_left_alone(attention: list[Any]) -> None:
    """A family may attend to other keys than those that it has just added."""
    cache = rows_of((40,), BITS[0], 2, 64)
    keys, values = random(1, 1, 2, 40, 64), random(2, 1, 2, 40, 64)
    mlx_lm_module("models.base").scaled_dot_product_attention(
        random(3, 1, 4, 1, 64), keys, values, cache=cache, scale=1.0, mask=None
    )
    assert attention == [cache]


@pytest.mark.skipif(has_cuda(), reason="the kernel there does not take heads so narrow")
def test_layers_that_attend_by_themselves_are_counted(attention: list[Any]) -> None:
    for family, expected in (("llama", 0), ("gemma2", 2)):
        network = build(family)
        quantise(network, KVBits(8, 8), has_latents=False)
        assert num_dequantised(network) == expected


def test_attention_is_replaced_once(attention: list[Any]) -> None:
    base = mlx_lm_module("models.base")
    made = replace_attention(QuantisedAttention, QuantisedAttention)
    assert made is base.scaled_dot_product_attention


def test_rows_of_a_batch_are_kept_quantised_parts() -> None:
    batch = rows_of((20, 9), BITS[1], 2, 64)
    assert isinstance(batch, KVRows)
    sizes = [array.nbytes for array in (*batch.keys, *batch.values)]
    dense = 2 * batch.capacity * 2 * batch.num_slots * 64 * 4
    assert sum(sizes) < dense * 0.3


@pytest.mark.parametrize(
    "family", [name for name in ("deepseek_v3", "minicpm3", "gpt_oss", "mamba2") if name in names()]
)
def test_other_states_keep_their_form(family: str) -> None:
    """Latents, windows and recurrent states do; keys and values that are computed from latents do not."""
    network, config = build(family), config_of(family)
    before = [type(cache) for cache in leaves(new_caches(network))]
    quantise(network, KVBits(4, 4), has_latents="kv_lora_rank" in config)
    after = [type(cache) for cache in leaves(new_caches(network))]
    expected = [QuantisedKV if kind is lib.KVCache and family != "deepseek_v3" else kind for kind in before]
    assert after == expected
