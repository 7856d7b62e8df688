"""The cache objects of one sequence, each inspected by itself: their layout, and the tokens and tensors of each leaf.

A leaf is a cache object that is not a composite. Views returned here share memory with the cache: copy and evaluate
them before the next forward pass, or every update copies the whole buffer.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import mlx.core as mx

from adapters.mlx.caches.classes import Tensors, children_of, known_traits, label_of, lib, traits_of
from adapters.mlx.caches.kv_rows import is_plain
from adapters.mlx.caches.quantised import QuantisedLayers, sides_of
from adapters.mlx.runtime.arrays import arrays_in, evaluate
from domain.memory.kv_bits import KVBits
from domain.memory.shape import buffer_slots
from domain.models.state_layout import LayerState, LeafPath, StateKind, StateLayout

Caches: TypeAlias = list[Any]
"""One cache object a layer, in the order of the model's `make_cache`. Plain ones hold one sequence, batch ones many."""

UNUSED_SHARE = 2
"""A buffer of which less than 1 / UNUSED_SHARE would be in use is replaced by a copy of what remains."""


_KV_FORM = "cairn_kv_form"
"""Attribute of a network whose full KV is kept quantised: a QuantisedLayers."""


def new_caches(network: Any) -> Caches:
    """Fresh plain caches for one sequence."""
    caches, form = list(lib.make_prompt_cache(network)), quantised_layers(network)
    return caches if form is None else form.replaced(caches)


def quantise(network: Any, bits: KVBits, *, has_latents: bool) -> None:
    """Lets `new_caches` of a network give full KV of `bits`. Computes nothing."""
    found = quantisable_layers(network, has_latents=has_latents)
    sides = {path: sides_of(bits, leaf.keys.shape[-1], leaf.values.shape[-1]) for path, leaf in found.items()}
    layer_bytes = max(map(token_bytes_of, found.values()), default=0)
    setattr(network, _KV_FORM, QuantisedLayers(bits, sides, layer_bytes))


def quantisable_layers(network: Any, *, has_latents: bool) -> dict[LeafPath, Any]:
    """The leaves of full KV, after one token, that can be quantised; computes nothing. `has_latents`: layers of one
    head hold latents, which keep their form, as does every class but that of plain KV."""
    caches = new_caches(network)
    network(mx.zeros((1, 1), dtype=mx.uint32), cache=caches)
    found = ((path, leaf_at(caches, path)) for path, _ in layout_of(caches).leaves())
    return {path: leaf for path, leaf in found if _can_quantise(leaf, has_latents)}


def token_bytes_of(leaf: Any) -> int:
    """Bytes of a token's keys and values in a leaf of full KV, as they are computed."""
    return sum(array.nbytes // array.shape[-2] for array in (leaf.keys, leaf.values))


def _can_quantise(leaf: Any, has_latents: bool) -> bool:
    if type(leaf) is not lib.KVCache or leaf.keys is None or (has_latents and leaf.keys.shape[1] == 1):
        return False
    return bool(leaf.values.shape[-1])


def quantised_layers(network: Any) -> QuantisedLayers | None:
    """The leaves that `quantise` chose; None for a network that keeps KV as it is computed."""
    return getattr(network, _KV_FORM, None)


def layout_of(caches: Caches) -> StateLayout:
    """The layout of these cache objects."""
    return StateLayout(tuple(_describe(cache) for cache in caches))


def _describe(cache: Any) -> LayerState:
    children = children_of(cache)
    if children is not None:
        return LayerState(StateKind.COMPOSITE, label_of(cache), children=tuple(_describe(child) for child in children))
    traits = traits_of(cache)
    if traits is None:
        return LayerState(StateKind.UNSUPPORTED, label_of(cache))
    window = traits.window(cache) if traits.window else None
    return LayerState(traits.kind, label_of(cache), window)


def leaf_at(caches: Sequence[Any], path: LeafPath) -> Any:
    """The cache object at a layout path."""
    found: Any = caches[path[0]]
    for index in path[1:]:
        found = found.caches[index]
    return found


def leaves(caches: Iterable[Any]) -> Iterator[Any]:
    """Every leaf, depth first."""
    for cache in caches:
        children = children_of(cache)
        if children is None:
            yield cache
        else:
            yield from leaves(children)


def arrays_of(cache: Any) -> list[mx.array]:
    """Every array that a leaf of any class holds."""
    traits = traits_of(cache)
    if traits is None:
        return arrays_in(getattr(cache, "state", ()))
    return [tensor for tensor in traits.tensors(cache) if tensor is not None]


def live_arrays(caches: Iterable[Any]) -> list[mx.array]:
    """Every array that the caches hold, for evaluation; do not keep them over an update."""
    return [array for cache in leaves(caches) for array in arrays_of(cache)]


def detach_from_chunk(caches: Sequence[Any]) -> None:
    """Makes recurrent states own their memory, lazily. Some families store a slice of what they computed for a whole
    chunk, which would stay alive with it. Copies nothing that owns its memory already."""
    for cache in leaves(caches):
        if isinstance(cache, lib.ArraysCache):
            cache.cache = [None if tensor is None else mx.contiguous(tensor) for tensor in cache.cache]


# ---- one leaf ------------------------------------------------------------------------------------------------------


def token_slices(cache: Any, row: int, num_tokens: int, start: int, end: int) -> Tensors | None:
    """Views of tokens [start, end) of one row, [1, heads, tokens, dim] each. Of a windowed cache, the trailing part of
    the span that resuming at `end` or later can need. None if the cache no longer holds that part."""
    reach = trailing_reach(cache)
    if reach is not None:
        start = max(start, end - reach)
    return token_views(cache, row, num_tokens, start, end)


def token_views(cache: Any, row: int, num_tokens: int, start: int, end: int) -> Tensors | None:
    """Views of all of [start, end) of one row, whatever the window. None if the cache lost some of it."""
    traits = known_traits(cache)
    assert traits.slots is not None
    tensors = traits.tensors(cache)
    if tensors[0] is None:
        return tensors
    slots = traits.slots(cache, num_tokens)
    if start < slots.oldest:
        return None
    return tuple(slots.cut(cast(mx.array, tensor)[row : row + 1], start, end) for tensor in tensors)


def oldest_held(cache: Any, num_tokens: int) -> int:
    """The first position that a token cache still holds."""
    traits = known_traits(cache)
    assert traits.slots is not None
    return 0 if traits.tensors(cache)[0] is None else traits.slots(cache, num_tokens).oldest


def recurrent_tensors(cache: Any, row: int) -> Tensors:
    """Views of one row of a recurrent state, all of it."""
    return tuple(None if tensor is None else tensor[row : row + 1] for tensor in known_traits(cache).tensors(cache))


def num_tensors(cache: Any) -> int:
    """The number of tensors of a leaf, empty slots included."""
    return len(known_traits(cache).tensors(cache))


def trailing_reach(cache: Any) -> int | None:
    """The number of tokens before a position that resuming there needs; None if all of them are needed."""
    traits = known_traits(cache)
    return None if traits.window is None else traits.window(cache) - traits.surplus


def grows_by_steps(cache: Any) -> bool:
    """True if a windowed leaf's buffer grows by whole steps beyond its window; a rotating one does not."""
    return type(cache) is lib.ChunkedKVCache


def spare_tokens(cache: Any, position: int) -> int:
    """The number of unused slots that prefill leaves in the buffer of a leaf at `position`. Kernels may choose their
    order of summation by a buffer's strides, so a restored buffer has them too."""
    return buffer_slots(position, cache.step) - position if is_plain(cache) else 0


def fill(cache: Any, tensors: Tensors, position: int) -> None:
    """Puts a fresh plain leaf at `position`. Token tensors cover all of it, or its trailing `trailing_reach` tokens,
    and `spare_tokens` after it. Raises ValueError for a class that holds a batch."""
    traits = known_traits(cache)
    if traits.fill is None:
        raise ValueError(f"cache class {label_of(cache)} holds a batch and cannot be restored")
    if traits.kind is not StateKind.RECURRENT and tensors[0] is None:
        return  # the model never used this cache
    traits.fill(cache, tensors, position)


def can_cut(cache: Any) -> bool:
    """True if a leaf can be cut back to any position before its own."""
    return known_traits(cache).cut is not None or _is_unused(cache)


def cut_back(cache: Any, num_tokens: int, position: int) -> None:
    """Brings a plain leaf at `num_tokens` back to `position`, at least 1, in place; evaluated if anything was copied.
    Raises ValueError if the leaf cannot be cut there."""
    traits = known_traits(cache)
    if position == num_tokens or _is_unused(cache):
        return
    if traits.cut is None or traits.fill is None or not 0 < position < num_tokens:
        raise ValueError(f"a {label_of(cache)} of {num_tokens} tokens cannot be cut back to {position}")
    tensors = tuple(cast(mx.array, tensor) for tensor in traits.tensors(cache))
    num_slots = tensors[0].shape[-2]
    if position * UNUSED_SHARE >= num_slots:
        traits.cut(cache, position)
        return
    end = min(num_slots, buffer_slots(position, getattr(cache, "step", 1)))
    # Copies, since a view would keep the whole buffer alive.
    copies = tuple(mx.concatenate([tensor[..., :end, :], tensor[..., :0, :]], axis=-2) for tensor in tensors)
    evaluate(copies)
    traits.fill(cache, copies, position)


def _is_unused(cache: Any) -> bool:
    """True if it is a leaf for tokens that the model never used."""
    traits = known_traits(cache)
    return traits.kind is not StateKind.RECURRENT and traits.tensors(cache)[0] is None


def hidden_cache(trunk: Caches) -> Any:
    """A fresh plain leaf for hidden states, to stand beside the caches of a trunk: of the last token only where the
    trunk has recurrent layers, otherwise of every token, because one that cannot be cut back keeps all others from
    it."""
    is_recurrent = any(isinstance(cache, lib.ArraysCache) for cache in leaves(trunk))
    return lib.ArraysCache(1) if is_recurrent else lib.KVCache()


def last_hidden(leaf: Any) -> mx.array | None:
    """The hidden state of the last token, [rows, 1, hidden]; None before the first one."""
    if isinstance(leaf, lib.ArraysCache):
        return cast(mx.array | None, leaf.cache[0])
    if leaf.keys is None:
        return None
    return mx.concatenate([half[..., -1:, :] for half in leaf.keys_and_values()], axis=-1)[:, 0]


def keep_hidden(leaf: Any, hidden: mx.array) -> None:
    """Appends hidden states [rows, length, hidden]. A leaf of full KV holds one half as keys, the other as values."""
    if isinstance(leaf, lib.ArraysCache):
        leaf.cache[0] = hidden[:, -1:]
    else:
        leaf.update_and_fetch(*mx.split(hidden[:, None], 2, axis=-1))
