"""Every cache class of the installed mlx-lm is covered by the adapter, or named here as not a layer's cache.

When mlx-lm gains a class this fails before any user meets it.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import mlx.core as mx
import pytest

from adapters.mlx.caches.arrays import RecurrentArrays
from adapters.mlx.caches.classes import known_classes
from adapters.mlx.caches.indexed import IndexedKV
from adapters.mlx.caches.kv_rows import KVRows
from adapters.mlx.caches.leaves import cut_back, fill, layout_of, leaves, live_arrays, token_slices, trailing_reach
from adapters.mlx.caches.pooled import PooledTokens
from adapters.mlx.caches.quantised import QuantisedKV, QuantisedRows, sides_of
from adapters.mlx.caches.rows import fork, unbatchable
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from domain.memory.kv_bits import KVBits
from domain.models.state_layout import StateKind
from tests.support.mlx.pooling import pooled
from tests.support.mlx.tiny_configs import FAMILIES, NOT_BUILT, WHOLE, WRAPPED
from tests.support.mlx.tiny_models import modules

NOT_A_LAYER = {"_BaseCache", "LRUPromptCache", "CacheEntry", "CacheOrder"}
"""The abstract base, and the prompt cache of mlx-lm's own server."""

OURS = {"KVRows", "QuantisedKV", "QuantisedRows", "PooledTokens", "IndexedKV", "RecurrentArrays"}
"""What stands in for a class of mlx-lm's."""

OUTSIDE_THE_CACHE_MODULE = {("deepseek_v41", "LayerCache")}
"""Known cache classes that a model defines for itself."""

lib: Any = mlx_lm_module("models.cache")
EIGHT_BITS = sides_of(KVBits(8, 8), 32, 32)


def defined_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and "Cache" in node.name}


def test_every_class_of_the_cache_module_is_known() -> None:
    found = defined_in(Path(lib.__file__))
    known = {known_class.__name__ for known_class in known_classes()}
    assert found - NOT_A_LAYER == known - OURS


def test_no_model_brings_a_cache_class_we_do_not_know() -> None:
    package = mlx_lm_module("models")
    found: set[tuple[str, str]] = set()
    for path in Path(package.__path__[0]).glob("*.py"):
        if path.stem != "cache":
            found |= {(path.stem, name) for name in defined_in(path)}
    assert found <= OUTSIDE_THE_CACHE_MODULE


def test_nothing_else_of_the_adapter_looks_into_a_cache_class() -> None:
    folder = Path(__file__).parents[3] / "adapters" / "mlx"
    classes = defined_in(Path(lib.__file__)) | {name for _, name in OUTSIDE_THE_CACHE_MODULE}
    for path in sorted(folder.rglob("*.py")):
        if path.parent.name in {"caches", "vlm"}:  # mlx-vlm's, which become mlx-lm's
            continue
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        words = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        words |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        assert not words & {*classes, "models.cache"}, path.name


def test_a_subclass_is_not_taken_for_its_parent() -> None:
    class Odd(lib.KVCache):  # type: ignore[misc]
        pass

    layout = layout_of([lib.KVCache(), Odd()])
    assert [layer.kind for layer in layout.layers] == [StateKind.SLICED, StateKind.UNSUPPORTED]
    assert layout.unsupported == ("Odd",)
    assert not layout.is_reusable
    assert "Odd" in unbatchable([Odd()])


def test_quantised_caches_of_other_precision_have_other_layouts() -> None:
    settings = [(64, 8), (64, 4), (32, 4)]
    caches = [lib.QuantizedKVCache(group_size=size, bits=bits) for size, bits in settings]
    described = [layout_of([cache]).describe() for cache in caches]
    assert described[0] == "sliced=QuantizedKVCache[bits=8,group_size=64]"
    assert len(set(described)) == len(settings)


def test_kept_first_tokens_make_a_window_unsupported() -> None:
    layout = layout_of([lib.RotatingKVCache(max_size=16, keep=4)])
    assert layout.unsupported == ("RotatingKVCache[keep=4]",)


def test_a_composite_is_described_by_its_children() -> None:
    pair = lib.CacheList(lib.ArraysCache(2), lib.RotatingKVCache(max_size=9))
    (layer,) = layout_of([pair]).layers
    assert layer.kind is StateKind.COMPOSITE
    assert [(child.kind, child.window) for child in layer.children] == [
        (StateKind.RECURRENT, None),
        (StateKind.WINDOWED, 9),
    ]
    assert list(leaves([pair])) == list(pair.caches)


def filled(name: str) -> Any:
    """A plain cache of each kind after twenty tokens in uneven updates."""
    makers = {
        "KVCache": lib.KVCache,
        "ConcatenateKVCache": lib.ConcatenateKVCache,
        "QuantizedKVCache": lambda: lib.QuantizedKVCache(group_size=32, bits=8),
        "RotatingKVCache": lambda: lib.RotatingKVCache(max_size=12),
        "ChunkedKVCache": lambda: lib.ChunkedKVCache(12),
    }
    cache = makers[name]()
    update(cache, 0, 20)
    return cache


def values_at(start: int, end: int) -> mx.array:
    """[1, 2, tokens, 32]: each token's values name it."""
    return mx.broadcast_to(mx.arange(start, end, dtype=mx.float32)[None, None, :, None], (1, 2, end - start, 32))


def update(cache: Any, start: int, end: int, sizes: tuple[int, ...] = (5, 1, 1, 7, 1, 1, 1)) -> None:
    at, turn = start, 0
    while at < end:
        size = min(sizes[turn % len(sizes)], end - at)
        if hasattr(cache, "maybe_trim_front"):
            cache.maybe_trim_front()
        cache.update_and_fetch(values_at(at, at + size), -values_at(at, at + size))
        at, turn = at + size, turn + 1


TOKEN_CACHES = ["KVCache", "ConcatenateKVCache", "RotatingKVCache", "ChunkedKVCache"]


@pytest.mark.parametrize("name", TOKEN_CACHES)
@pytest.mark.parametrize("num_tokens", [3, 11, 12, 13, 15, 16, 17, 20, 37])
def test_slices_are_the_tokens_they_are_asked_for(name: str, num_tokens: int) -> None:
    cache = filled(name)
    if num_tokens > 20:
        update(cache, 20, num_tokens)
    else:
        cache = type(cache)(12) if name in {"RotatingKVCache", "ChunkedKVCache"} else type(cache)()
        update(cache, 0, num_tokens)
    reach = trailing_reach(cache) or num_tokens
    for start, end in ((0, num_tokens), (num_tokens - 2, num_tokens), (num_tokens - 3, num_tokens - 1)):
        found = token_slices(cache, 0, num_tokens, start, end)
        first = max(start, end - reach)
        assert found is not None or first < num_tokens - reach
        if found is not None:
            assert found[0] is not None
            assert found[1] is not None
            assert found[0][0, 0, :, 0].tolist() == list(range(first, end))
            assert (found[1] == -found[0]).all().item()


@pytest.mark.parametrize("position", [4, 12, 19])
def test_an_index_is_cut_and_put_back(position: int) -> None:
    cache, again = IndexedKV(), IndexedKV()
    index(cache, 0, 20)
    parts = token_slices(cache, 0, 20, 0, position)
    assert parts is not None
    fill(again, parts, position)
    cut_back(cache, 20, position)
    for one in (cache, again):
        assert one.offset == position
        assert one.index_block_keys is None
        keys, positions = one.update_indexer(values_at(position, 25)[:, 0], mx.arange(position, 25)[None])
        assert keys[0, :, 0].tolist() == positions[0].tolist() == list(range(25))


def test_quantised_caches_are_cut_and_put_back() -> None:
    cache = filled("QuantizedKVCache")
    parts = [token_slices(cache, 0, 20, start, end) for start, end in ((0, 8), (8, 20))]
    assert all(part is not None for part in parts)
    joined = tuple(mx.concatenate(column, axis=-2) for column in zip(*parts, strict=True))  # type: ignore[arg-type]
    again = lib.QuantizedKVCache(group_size=32, bits=8)
    fill(again, joined, 20)
    update(cache, 20, 30)
    update(again, 20, 30)
    for own, other in zip((*cache.keys, *cache.values), (*again.keys, *again.values), strict=True):
        assert (own[..., :30, :] == other[..., :30, :]).all().item()


def contents(held: object) -> object:
    """All that a cache holds, as plain values."""
    if isinstance(held, mx.array):
        return held.shape, held.tolist()
    if isinstance(held, list | tuple):
        return [contents(one) for one in held]
    if isinstance(held, ref):
        return contents(held())
    return {name: contents(value) for name, value in vars(held).items()} if hasattr(held, "__dict__") else held


def tick(cache: Any, start: int, end: int) -> None:
    """A recurrent state takes in tokens: one slot is replaced, one is changed in place, as models do either."""
    cache[0] = values_at(start, end)[..., -1:, :]
    cache[1] = mx.zeros((1, 4)) if cache[1] is None else cache[1]
    cache[1][..., start % 4] = float(end)
    cache.lengths = mx.array([9]) if cache.lengths is None else cache.lengths
    cache.advance(end - start)


def slide(cache: Any, start: int, end: int) -> None:
    cache.update_window(values_at(start, end)[:, 0])
    cache.compress_kv = cache.window[:, :1] * 2


def pair_up(cache: Any, start: int, end: int) -> None:
    tick(cache[0], start, end)
    update(cache[1], start, end)


def index(cache: Any, start: int, end: int) -> None:
    keys = values_at(start, end)[:, 0]
    keys, _ = cache.update_indexer(keys, mx.arange(start, end)[None])
    cache.index_block_keys, cache.index_block_ratio = keys[:, None, ::4], 4
    update(cache, start, end)


def roll(cache: Any, start: int, end: int) -> None:
    cache.update_window(0, values_at(start, end)[:, 0], 1)
    cache.update_recurrent(1, end - start, lambda state, _: (None, values_at(start, end).sum() + (state or 0)))


def pool(cache: Any, start: int, end: int) -> None:
    pooled(cache, values_at(start, end)[:, 0], start)


FORKED: dict[str, tuple[Callable[[], Any], Callable[[Any, int, int], None]]] = {
    "KVCache": (lib.KVCache, update),
    "ConcatenateKVCache": (lib.ConcatenateKVCache, update),
    "QuantizedKVCache": (lambda: lib.QuantizedKVCache(group_size=32, bits=8), update),
    "RotatingKVCache": (lambda: lib.RotatingKVCache(max_size=12), update),
    "ChunkedKVCache": (lambda: lib.ChunkedKVCache(12), update),
    "BatchKVCache": (lambda: lib.BatchKVCache([0]), update),
    "BatchRotatingKVCache": (lambda: lib.BatchRotatingKVCache(12, [0]), update),
    "KVRows": (lambda: KVRows(lib.KVCache()), update),
    "QuantisedKV": (lambda: QuantisedKV(EIGHT_BITS), update),
    "QuantisedRows": (lambda: QuantisedRows(QuantisedKV(EIGHT_BITS)), update),
    "ArraysCache": (lambda: lib.ArraysCache(2), tick),
    "CacheList": (lambda: lib.CacheList(lib.ArraysCache(2), lib.KVCache()), pair_up),
    "IndexedKV": (IndexedKV, index),
    "RecurrentArrays": (lambda: RecurrentArrays(2), roll),
    "PooledTokens": (lambda: PooledTokens(4, overlaps=True), pool),
    "LayerCache": (lambda: mlx_lm_module("models.deepseek_v41").LayerCache(12), slide),
}


def test_every_known_class_is_forked_below() -> None:
    assert set(FORKED) == {
        *(known.__name__ for known in known_classes()),
        *(name for _, name in OUTSIDE_THE_CACHE_MODULE),
    }


@pytest.mark.parametrize("num_tokens", [0, 1, 7, 12, 14, 20, 256])
@pytest.mark.parametrize("name", FORKED)
def test_what_happens_to_a_fork_happens_to_no_other(name: str, num_tokens: int) -> None:
    """Forks share memory until one writes: in spare slots, in a ring, in an array it changes in place."""
    make, feed = FORKED[name]
    cache, untouched = make(), make()
    if num_tokens:
        feed(cache, 0, num_tokens)
        feed(untouched, 0, num_tokens)
    before = contents(cache)
    assert before == contents(untouched)
    first, second = fork([cache])[0], fork([cache])[0]
    for one in (first, second, cache):
        assert contents(one) == before
        for start in range(num_tokens, num_tokens + 3):
            feed(one, start, start + 1)
        feed(one, num_tokens + 3, num_tokens + 9)
    for start in range(num_tokens, num_tokens + 3):
        feed(untouched, start, start + 1)
    feed(untouched, num_tokens + 3, num_tokens + 9)
    assert contents(first) == contents(second) == contents(cache) == contents(untouched) != before


@pytest.mark.parametrize("name", FORKED)
def test_a_fork_takes_no_memory_of_its_own(name: str) -> None:
    make, feed = FORKED[name]
    cache = make()
    feed(cache, 0, 20)
    arrays = live_arrays([cache])
    mx.eval(arrays)
    forked = live_arrays(fork([cache]))
    used = mx.get_active_memory()
    mx.eval(forked)
    assert mx.get_active_memory() <= used  # less where garbage of other tests went meanwhile
    assert all(one is not other for one, other in zip(arrays, forked, strict=True))


def test_a_batch_cache_cannot_be_restored() -> None:
    with pytest.raises(ValueError, match="holds a batch"):
        fill(lib.BatchKVCache([0]), (mx.zeros((1, 1, 1, 1)), mx.zeros((1, 1, 1, 1))), 1)


def test_every_model_module_has_a_tiny_configuration_or_a_reason() -> None:
    assert set(modules()) <= {*FAMILIES, *WRAPPED, *WHOLE, *NOT_BUILT}
