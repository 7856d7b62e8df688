"""All contact with mlx-lm's cache classes: what they are, where tokens lie in them, and how they are put back.

A cache class is known by its exact type or not at all: a subclass may mean something else by the same fields, so it
counts as unsupported until it has an entry in `_TRAITS`. Fields are read and set directly, because the `state`
property changed its shape between mlx-lm 0.31 and 0.32 while the fields did not.

Where token `p` of a sequence of `n` tokens lies on the token axis (axis -2):

    class                    oldest token held            slot of the oldest token            ring
    KVCache, Quantized       0                            0                                   -
    ChunkedKVCache           start_position               0                                   -
    RotatingKVCache          n - len if full, else 0      _idx once it wraps, else 0          len
    BatchKVCache             0                            _idx - n (left padding)             -
    BatchRotatingKVCache     max(0, n - slots in use)     right-justified; _idx once it wraps len

Views returned here share memory with the cache: copy and evaluate them before the next forward pass, or every update
copies the whole buffer.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import mlx.core as mx

from adapters.mlx.arrays import arrays_in, token_array
from adapters.mlx.file_limit import mlx_lm_module
from adapters.mlx.token_slots import TokenSlots
from domain.state_layout import LayerState, LeafPath, StateKind, StateLayout

_lib: Any = mlx_lm_module("models.cache")

Caches: TypeAlias = list[Any]
"""One cache object a layer, in the order of the model's `make_cache`. Plain ones hold one sequence, batch ones many."""

Tensors: TypeAlias = tuple[mx.array | None, ...]
"""The arrays of one leaf in a fixed order; None for a slot that the model left empty."""

_LAYER_CACHE_FIELDS = ("window", "compress_kv", "index_k", "pending_kv", "pending_gate")


@dataclass(frozen=True, slots=True)
class _Traits:
    """What one cache class is. `surplus`: tokens of a full window that resuming does not need."""

    kind: StateKind
    tensors: Callable[[Any], Tensors]
    fill: Callable[[Any, Tensors, int], None] | None = None
    slots: Callable[[Any, int], TokenSlots] | None = None
    window: Callable[[Any], int] | None = None
    surplus: int = 0
    can_batch: bool = False


def _key_value(cache: Any) -> Tensors:
    return cache.keys, cache.values


def _quantized(cache: Any) -> Tensors:
    return (None,) * 6 if cache.keys is None else (*cache.keys, *cache.values)


def _arrays(cache: Any) -> Tensors:
    return tuple(cache.cache)


def _layer_cache(cache: Any) -> Tensors:
    return tuple(getattr(cache, name) for name in _LAYER_CACHE_FIELDS)


def _window(cache: Any) -> int:
    return int(cache.max_size)


def _from_start(cache: Any, num_tokens: int) -> TokenSlots:
    return TokenSlots(0, 0)


def _chunked_slots(cache: Any, num_tokens: int) -> TokenSlots:
    return TokenSlots(cache.start_position, 0)


def _rotating_slots(cache: Any, num_tokens: int) -> TokenSlots:
    length, index = cache.keys.shape[2], cache._idx
    if index == length:
        return TokenSlots(num_tokens - length, 0)
    if index < cache.offset:
        return TokenSlots(num_tokens - length, index, ring=length)
    return TokenSlots(0, 0)


def _batch_slots(cache: Any, num_tokens: int) -> TokenSlots:
    return TokenSlots(0, cache._idx - num_tokens)


def _batch_rotating_slots(cache: Any, num_tokens: int) -> TokenSlots:
    in_use = cache.keys.shape[2] if cache.rotated else cache._idx
    held = min(num_tokens, in_use)
    origin = in_use - held
    if cache.rotated:
        return TokenSlots(num_tokens - held, (cache._idx + origin) % in_use, ring=in_use)
    return TokenSlots(num_tokens - held, origin)


# ---- putting back --------------------------------------------------------------------------------------------------


def _fill_key_value(cache: Any, tensors: Tensors, position: int) -> None:
    cache.keys, cache.values = tensors
    cache.offset = position


def _fill_quantized(cache: Any, tensors: Tensors, position: int) -> None:
    cache.keys, cache.values = list(tensors[:3]), list(tensors[3:])
    cache.offset = position


def _fill_rotating(cache: Any, tensors: Tensors, position: int) -> None:
    """The oldest slot of a full window is overwritten or dropped by the next update before anything attends to it."""
    if position >= cache.max_size:
        tensors = tuple(_with_stale_slot(cast(mx.array, tensor)) for tensor in tensors)
    cache.keys, cache.values = tensors
    cache.offset = position
    cache._idx = _num_tokens(tensors)


def _with_stale_slot(tensor: mx.array) -> mx.array:
    return mx.concatenate([mx.zeros_like(tensor[..., :1, :]), tensor], axis=-2)


def _fill_chunked(cache: Any, tensors: Tensors, position: int) -> None:
    cache.keys, cache.values = tensors
    cache.offset = position
    cache.start_position = position - _num_tokens(tensors)


def _num_tokens(tensors: Tensors) -> int:
    return cast(mx.array, tensors[0]).shape[-2]


def _fill_arrays(cache: Any, tensors: Tensors, position: int) -> None:
    cache.cache = list(tensors)


def _fill_layer_cache(cache: Any, tensors: Tensors, position: int) -> None:
    for name, tensor in zip(_LAYER_CACHE_FIELDS, tensors, strict=True):
        setattr(cache, name, tensor)
    cache.offset = position


# ---- the table -----------------------------------------------------------------------------------------------------

_SLICED, _WINDOWED, _RECURRENT = StateKind.SLICED, StateKind.WINDOWED, StateKind.RECURRENT

_TRAITS: dict[type, _Traits] = {
    _lib.KVCache: _Traits(_SLICED, _key_value, _fill_key_value, slots=_from_start, can_batch=True),
    _lib.ConcatenateKVCache: _Traits(_SLICED, _key_value, _fill_key_value, slots=_from_start),
    _lib.QuantizedKVCache: _Traits(_SLICED, _quantized, _fill_quantized, slots=_from_start),
    _lib.BatchKVCache: _Traits(_SLICED, _key_value, slots=_batch_slots),
    _lib.RotatingKVCache: _Traits(
        _WINDOWED, _key_value, _fill_rotating, _rotating_slots, _window, surplus=1, can_batch=True
    ),
    _lib.BatchRotatingKVCache: _Traits(_WINDOWED, _key_value, None, _batch_rotating_slots, _window, surplus=1),
    _lib.ChunkedKVCache: _Traits(_WINDOWED, _key_value, _fill_chunked, _chunked_slots, lambda c: int(c.chunk_size)),
    _lib.ArraysCache: _Traits(_RECURRENT, _arrays, _fill_arrays, can_batch=True),
}

_LAYER_CACHE = _Traits(_RECURRENT, _layer_cache, _fill_layer_cache)


def _class_of(cache: Any) -> type:
    return cache.__class__  # type: ignore[no-any-return]


def _traits(cache: Any) -> _Traits | None:
    known = _TRAITS.get(_class_of(cache))
    if known is not None:
        return None if getattr(cache, "keep", 0) else known  # kept first tokens are beyond what a window describes
    deepseek = sys.modules.get("mlx_lm.models.deepseek_v41")  # loaded if and only if its model is
    return _LAYER_CACHE if deepseek is not None and type(cache) is deepseek.LayerCache else None


def _known(cache: Any) -> _Traits:
    traits = _traits(cache)
    if traits is None:
        raise ValueError(f"cache class {label_of(cache)} is not supported")
    return traits


def _children(cache: Any) -> Sequence[Any] | None:
    return cast(Sequence[Any], cache.caches) if type(cache) is _lib.CacheList else None


# ---- layout --------------------------------------------------------------------------------------------------------


def new_caches(network: Any) -> Caches:
    """Fresh plain caches for one sequence."""
    return list(_lib.make_prompt_cache(network))


def label_of(cache: Any) -> str:
    """Class name, with the parameters that change its meaning; they are part of the fingerprint."""
    found = {name: getattr(cache, name, 0) for name in ("keep", "bits", "group_size")}
    told = ",".join(f"{name}={value}" for name, value in found.items() if value)
    return f"{type(cache).__name__}[{told}]" if told else type(cache).__name__


def layout_of(caches: Caches) -> StateLayout:
    """What these cache objects consist of, each one inspected."""
    return StateLayout(tuple(_describe(cache) for cache in caches))


def _describe(cache: Any) -> LayerState:
    children = _children(cache)
    if children is not None:
        return LayerState(StateKind.COMPOSITE, label_of(cache), children=tuple(_describe(child) for child in children))
    traits = _traits(cache)
    if traits is None:
        return LayerState(StateKind.UNSUPPORTED, label_of(cache))
    window = traits.window(cache) if traits.window else None
    return LayerState(traits.kind, label_of(cache), window)


def leaf(caches: Sequence[Any], path: LeafPath) -> Any:
    """The cache object at a layout path."""
    found: Any = caches[path[0]]
    for index in path[1:]:
        found = found.caches[index]
    return found


def leaves(caches: Sequence[Any]) -> Iterator[Any]:
    """Every cache object that is not a composite, depth first."""
    for cache in caches:
        children = _children(cache)
        if children is None:
            yield cache
        else:
            yield from leaves(children)


def live_arrays(caches: Sequence[Any]) -> list[mx.array]:
    """Every array the caches hold, for evaluation; do not keep them over an update."""
    found: list[mx.array] = []
    for cache in leaves(caches):
        traits = _traits(cache)
        if traits is not None:
            found += [tensor for tensor in traits.tensors(cache) if tensor is not None]
        else:
            found += arrays_in(getattr(cache, "state", ()))
    return found


# ---- capture and restore of one leaf -------------------------------------------------------------------------------


def token_slices(cache: Any, row: int, num_tokens: int, start: int, end: int) -> Tensors | None:
    """Views of tokens [start, end) of one row, [1, heads, tokens, dim] each; a windowed cache gives the trailing part
    of the span that resuming at `end` or later can need. None when the cache no longer holds that part."""
    reach = trailing_reach(cache)
    if reach is not None:
        start = max(start, end - reach)
    return token_views(cache, row, num_tokens, start, end)


def token_views(cache: Any, row: int, num_tokens: int, start: int, end: int) -> Tensors | None:
    """Views of all of [start, end) of one row, however far a window reaches. None when the cache lost some of it."""
    traits = _known(cache)
    assert traits.slots is not None
    tensors = traits.tensors(cache)
    if tensors[0] is None:
        return tensors
    slots = traits.slots(cache, num_tokens)
    if start < slots.oldest:
        return None
    return tuple(slots.cut(cast(mx.array, tensor)[row : row + 1], start, end) for tensor in tensors)


def oldest_held(cache: Any, num_tokens: int) -> int:
    """The first position of a token cache's row that is still in it."""
    traits = _known(cache)
    assert traits.slots is not None
    return 0 if traits.tensors(cache)[0] is None else traits.slots(cache, num_tokens).oldest


def recurrent_tensors(cache: Any, row: int) -> Tensors:
    """Views of one row of a recurrent state, all of it."""
    return tuple(None if tensor is None else tensor[row : row + 1] for tensor in _known(cache).tensors(cache))


def num_tensors(cache: Any) -> int:
    """How many tensors a leaf has, empty slots included."""
    return len(_known(cache).tensors(cache))


def trailing_reach(cache: Any) -> int | None:
    """Tokens before a position that resuming there needs; None where all of them are needed."""
    traits = _known(cache)
    return None if traits.window is None else traits.window(cache) - traits.surplus


def spare_tokens(cache: Any, position: int) -> int:
    """Unused slots after `position` in the buffer of a cache that prefill brought there on any grid that is a divisor
    or a multiple of the step it grows by. Kernels may choose their order of summation by a buffer's strides."""
    return -position % cache.step if type(cache) is _lib.KVCache else 0


def fill(cache: Any, tensors: Tensors, position: int) -> None:
    """Put a fresh plain cache at `position`. Token tensors cover all of it, or its trailing `trailing_reach` tokens,
    and `spare_tokens` after it."""
    traits = _known(cache)
    if traits.fill is None:
        raise ValueError(f"cache class {label_of(cache)} holds a batch and cannot be restored")
    if traits.kind is not StateKind.RECURRENT and tensors[0] is None:
        return  # the model never used this cache
    traits.fill(cache, tensors, position)


# ---- batching ------------------------------------------------------------------------------------------------------


def unbatchable(caches: Caches) -> str:
    """Names of the cache classes that cannot share a batch; empty when all can."""
    found = {label_of(cache) for cache in leaves(caches) if not ((traits := _traits(cache)) and traits.can_batch)}
    return ", ".join(sorted(found))


def recurrent_shapes(caches: Caches) -> list[tuple[int, ...] | None]:
    """Shapes of all recurrent states without the row axis. Some grow over a sequence's first tokens, and only rows of
    equal shapes can share a batch."""
    states = [tensor for cache in leaves(caches) if type(cache) is _lib.ArraysCache for tensor in cache.cache]
    return [None if tensor is None else tuple(tensor.shape[1:]) for tensor in states]


def merge(rows: Sequence[Caches]) -> Caches:
    """One batch from plain caches, each of which has seen at least one token. Copies; the rows stay as they are."""
    columns: list[list[Any]] = [[row[index] for row in rows] for index in range(len(rows[0]))]
    return [column[0].merge(column) for column in columns]


def extend(batch: Caches, other: Caches) -> None:
    """Append the rows of another batch, which must not be used afterwards."""
    for mine, theirs in zip(batch, other, strict=True):
        mine.extend(theirs)


def keep_rows(batch: Caches, rows: Sequence[int]) -> None:
    """Keep these rows of a batch, in this order, and drop the others."""
    indices = token_array(rows)
    for cache in batch:
        cache.filter(indices)


def take_row(batch: Caches, row: int) -> Caches:
    """A plain copy of one row."""
    return [_take(cache, row) for cache in batch]


def _take(cache: Any, row: int) -> Any:
    children = _children(cache)
    if children is not None:
        return _lib.CacheList(*(_take(child, row) for child in children))
    if type(cache) is not _lib.ArraysCache:
        return cache.extract(row)
    plain = _lib.ArraysCache(len(cache.cache))  # its own `extract` fails on slots that are empty
    plain.cache = [None if tensor is None else mx.contiguous(tensor[row : row + 1]) for tensor in cache.cache]
    return plain


def known_classes() -> frozenset[type]:
    """Classes with an entry of their own, composites included; what the contract test compares mlx-lm with."""
    return frozenset({*_TRAITS, _lib.CacheList})


__all__ = (
    "Caches",
    "Tensors",
    "extend",
    "fill",
    "keep_rows",
    "known_classes",
    "label_of",
    "layout_of",
    "leaf",
    "leaves",
    "live_arrays",
    "merge",
    "new_caches",
    "num_tensors",
    "oldest_held",
    "recurrent_shapes",
    "recurrent_tensors",
    "take_row",
    "token_slices",
    "token_views",
    "trailing_reach",
    "unbatchable",
)
