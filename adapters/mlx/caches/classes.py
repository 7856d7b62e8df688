"""A table of mlx-lm's cache classes: the kind of each, its tensors, the slots of its tokens, and how it is filled.

A class is known by its exact type: a subclass may use the same fields with another meaning, so it is unsupported until
it has an entry in `_TRAITS`. Fields are read and set directly, because the `state` property changed its shape between
versions of mlx-lm while the fields did not.

The slots of a sequence of `n` tokens on the token axis (axis -2):

    class                    oldest token held            slot of the oldest token            ring
    KVCache, Quantized       0                            0                                   -
    ChunkedKVCache           start_position               0                                   -
    RotatingKVCache          n - len if full, else 0      _idx once it wraps, else 0          len
    ... just restored, full  n - len + 1                  1: slot 0 is empty                  -
    KVRows, BatchKVCache     0                            _idx - n (left padding)             -
    BatchRotatingKVCache     max(0, n - slots in use)     right-justified; _idx once it wraps len
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import mlx.core as mx

from adapters.mlx.caches.arrays import RecurrentArrays
from adapters.mlx.caches.indexed import IndexedKV
from adapters.mlx.caches.kv_rows import KVRows, held_by, hold, lib
from adapters.mlx.caches.pooled import FIELDS, PooledTokens
from adapters.mlx.caches.quantised import QuantisedKV, QuantisedRows
from domain.memory.shape import buffer_slots
from domain.models.state_layout import StateKind

Tensors: TypeAlias = tuple[mx.array | None, ...]
"""The arrays of one leaf in a fixed order; None for a slot that the model left empty."""

_RESTORED_AT = "cairn_restored_at"
"""Attribute of a rotating cache that was restored with an empty slot: its position until the next update."""

PlainKV: Any = lib.KVCache
"""The class of full KV of one sequence."""

Composite: Any = lib.CacheList
"""The class of several caches of one layer."""

_LAYER_CACHE_FIELDS = ("window", "compress_kv", "index_k", "pending_kv", "pending_gate")


@dataclass(frozen=True, slots=True)
class TokenSlots:
    """The slots of a sequence's tokens on a tensor's token axis: position `oldest` is in slot `origin`, later positions
    follow, modulo `ring` if set."""

    oldest: int
    origin: int
    ring: int | None = None

    def cut(self, tensor: mx.array, start: int, end: int) -> mx.array:
        """Positions [start, end), none before `oldest`; a view unless they wrap around the ring."""
        first, count = self.origin + start - self.oldest, end - start
        first = first if self.ring is None else first % self.ring
        wrapped = 0 if self.ring is None else max(0, first + count - self.ring)
        head = tensor[..., first : first + count - wrapped, :]
        return mx.concatenate([head, tensor[..., :wrapped, :]], axis=-2) if wrapped else head


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of one cache class. `cut`: goes back to fewer tokens in place without copying; None for windowed
    and recurrent states, which are valid at their own position only. `surplus`: tokens of a full window that resuming
    does not need."""

    kind: StateKind
    tensors: Callable[[Any], Tensors]
    fill: Callable[[Any, Tensors, int], None] | None = None
    cut: Callable[[Any, int], None] | None = None
    slots: Callable[[Any, int], TokenSlots] | None = None
    window: Callable[[Any], int] | None = None
    surplus: int = 0
    can_batch: bool = False


def _key_value(cache: Any) -> Tensors:
    return cache.keys, cache.values


def _quantised_parts(cache: Any) -> Tensors:
    return tuple(held_by(cache)) or (None,) * 6


def _quantized(cache: Any) -> Tensors:
    return (None,) * 6 if cache.keys is None else (*cache.keys, *cache.values)


def _indexed(cache: Any) -> Tensors:
    keys = cache.index_keys
    return cache.keys, cache.values, None if keys is None else keys[:, None]


def _arrays(cache: Any) -> Tensors:
    return tuple(cache.cache)


def _layer_cache(cache: Any) -> Tensors:
    return tuple(getattr(cache, name) for name in _LAYER_CACHE_FIELDS)


def _pooled(cache: Any) -> Tensors:
    return tuple(getattr(cache, name) for name in FIELDS)


def _window(cache: Any) -> int:
    return int(cache.max_size)


def _from_start(cache: Any, num_tokens: int) -> TokenSlots:
    return TokenSlots(0, 0)


def _chunked_slots(cache: Any, num_tokens: int) -> TokenSlots:
    return TokenSlots(cache.start_position, 0)


def _rotating_slots(cache: Any, num_tokens: int) -> TokenSlots:
    length, index = cache.keys.shape[2], cache._idx
    if getattr(cache, _RESTORED_AT, None) == cache.offset:
        return TokenSlots(num_tokens - length + 1, 1)
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


# ---- filling -------------------------------------------------------------------------------------------------------


def _fill_key_value(cache: Any, tensors: Tensors, position: int) -> None:
    cache.keys, cache.values = tensors
    cache.offset = position


def _fill_quantised_kv(cache: Any, tensors: Tensors, position: int) -> None:
    hold(cache, [cast(mx.array, tensor) for tensor in tensors])
    cache.offset = position


def _fill_quantized(cache: Any, tensors: Tensors, position: int) -> None:
    cache.keys, cache.values = list(tensors[:3]), list(tensors[3:])
    cache.offset = position


def _fill_indexed(cache: Any, tensors: Tensors, position: int) -> None:
    *kv, index = tensors
    _fill_key_value(cache, tuple(kv), position)
    cache.index_keys = cast(mx.array, index)[:, 0]
    cache.cut_index(position)


def _fill_rotating(cache: Any, tensors: Tensors, position: int) -> None:
    """A full window gets an empty slot 0, without which the class would grow by a negative number. The next update
    overwrites or drops that slot before anything attends to it."""
    if position >= cache.max_size:
        tensors = tuple(_with_empty_slot(cast(mx.array, tensor)) for tensor in tensors)
        setattr(cache, _RESTORED_AT, position)
    cache.keys, cache.values = tensors
    cache.offset = position
    cache._idx = _num_tokens(tensors)


def _with_empty_slot(tensor: mx.array) -> mx.array:
    return mx.concatenate([mx.zeros_like(tensor[..., :1, :]), tensor], axis=-2)


def _fill_chunked(cache: Any, tensors: Tensors, position: int) -> None:
    cache.keys, cache.values = tensors
    cache.offset = position
    cache.start_position = position - _num_tokens(tensors)


def _num_tokens(tensors: Tensors) -> int:
    return cast(mx.array, tensors[0]).shape[-2]


def _fill_arrays(cache: Any, tensors: Tensors, position: int) -> None:
    cache.cache = list(tensors)


def _fill_pooled(cache: Any, tensors: Tensors, position: int) -> None:
    for name, tensor in zip(FIELDS, tensors, strict=True):
        setattr(cache, name, tensor)


def _fill_layer_cache(cache: Any, tensors: Tensors, position: int) -> None:
    for name, tensor in zip(_LAYER_CACHE_FIELDS, tensors, strict=True):
        setattr(cache, name, tensor)
    cache.offset = position


# ---- cutting back --------------------------------------------------------------------------------------------------


def _cut_key_value(cache: Any, position: int) -> None:
    """At a position where prefill would have grown the buffer, the number of slots is that of prefill: a buffer's
    strides may select a kernel."""
    if position % cache.step == 0:
        slots = buffer_slots(position, cache.step)
        hold(cache, [buffer[..., :slots, :] for buffer in held_by(cache)])
    cache.offset = position


def _cut_indexed(cache: Any, position: int) -> None:
    _cut_key_value(cache, position)
    cache.cut_index(position)


def _cut_quantized(cache: Any, position: int) -> None:
    if position % cache.step == 0:
        cache.keys, cache.values = ([part[..., :position, :] for part in side] for side in (cache.keys, cache.values))
    cache.offset = position


def _cut_concatenated(cache: Any, position: int) -> None:
    """The next update takes all slots of the arrays, so there is no spare one."""
    cache.keys, cache.values = cache.keys[..., :position, :], cache.values[..., :position, :]
    cache.offset = position


# ---- the table -----------------------------------------------------------------------------------------------------

_SLICED, _WINDOWED, _RECURRENT = StateKind.SLICED, StateKind.WINDOWED, StateKind.RECURRENT

_TRAITS: dict[type, Traits] = {
    lib.KVCache: Traits(_SLICED, _key_value, _fill_key_value, _cut_key_value, _from_start, can_batch=True),
    lib.ConcatenateKVCache: Traits(_SLICED, _key_value, _fill_key_value, _cut_concatenated, _from_start),
    QuantisedKV: Traits(_SLICED, _quantised_parts, _fill_quantised_kv, _cut_key_value, _from_start, can_batch=True),
    QuantisedRows: Traits(_SLICED, _quantised_parts, slots=_batch_slots),
    lib.QuantizedKVCache: Traits(_SLICED, _quantized, _fill_quantized, _cut_quantized, _from_start),
    lib.BatchKVCache: Traits(_SLICED, _key_value, slots=_batch_slots),
    KVRows: Traits(_SLICED, _key_value, slots=_batch_slots),
    lib.RotatingKVCache: Traits(
        _WINDOWED, _key_value, _fill_rotating, None, _rotating_slots, _window, surplus=1, can_batch=True
    ),
    lib.BatchRotatingKVCache: Traits(_WINDOWED, _key_value, slots=_batch_rotating_slots, window=_window, surplus=1),
    lib.ChunkedKVCache: Traits(
        _WINDOWED, _key_value, _fill_chunked, slots=_chunked_slots, window=lambda cache: int(cache.chunk_size)
    ),
    IndexedKV: Traits(_SLICED, _indexed, _fill_indexed, _cut_indexed, _from_start),
    lib.ArraysCache: Traits(_RECURRENT, _arrays, _fill_arrays, can_batch=True),
    RecurrentArrays: Traits(_RECURRENT, _arrays, _fill_arrays, can_batch=True),
    PooledTokens: Traits(_RECURRENT, _pooled, _fill_pooled),
}

_LAYER_CACHE = Traits(_RECURRENT, _layer_cache, _fill_layer_cache)


def _class_of(cache: Any) -> type:
    return cache.__class__  # type: ignore[no-any-return]


def traits_of(cache: Any) -> Traits | None:
    """The traits of a cache object; None for an unknown class."""
    known = _TRAITS.get(_class_of(cache))
    if known is not None:
        return None if getattr(cache, "keep", 0) else known  # a window cannot describe the first tokens that it keeps
    deepseek = sys.modules.get("mlx_lm.models.deepseek_v41")  # loaded if and only if its model is
    return _LAYER_CACHE if deepseek is not None and type(cache) is deepseek.LayerCache else None


def label_of(cache: Any) -> str:
    """The class name with the parameters that change its meaning; part of the fingerprint."""
    if isinstance(cache, QuantisedKV):
        return f"QuantisedKV[{','.join(f'{side.bits}:{side.group_size}' for side in cache.sides)}]"
    found = {name: getattr(cache, name, 0) for name in ("keep", "bits", "group_size")}
    parameters = ",".join(f"{name}={value}" for name, value in found.items() if value)
    return f"{type(cache).__name__}[{parameters}]" if parameters else type(cache).__name__


def known_traits(cache: Any) -> Traits:
    """The traits of a cache object. Raises ValueError for an unknown class."""
    traits = traits_of(cache)
    if traits is None:
        raise ValueError(f"cache class {label_of(cache)} is not supported")
    return traits


def children_of(cache: Any) -> Sequence[Any] | None:
    """The parts of a composite; None for any other cache object."""
    return cast(Sequence[Any], cache.caches) if type(cache) is lib.CacheList else None


def known_classes() -> frozenset[type]:
    """The classes of the table and the composite class, which the contract test compares with mlx-lm."""
    return frozenset({*_TRAITS, lib.CacheList})


__all__ = (
    "Composite",
    "PlainKV",
    "Tensors",
    "TokenSlots",
    "Traits",
    "children_of",
    "known_classes",
    "known_traits",
    "label_of",
    "lib",
    "traits_of",
)
