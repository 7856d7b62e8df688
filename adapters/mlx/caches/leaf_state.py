"""Capture, restore and cutting back of one leaf, a cache object that is no composite.

Views returned here share memory with the cache: copy and evaluate them before the next forward pass, or every update
copies the whole buffer.
"""

from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.classes import Tensors, known_traits, label_of, lib
from adapters.mlx.runtime.arrays import evaluate
from domain.memory.buffer_slots import buffer_slots
from domain.models.state_layout import StateKind

UNUSED_SHARE = 2
"""A buffer that would be filled to less than one part in so many is replaced by a copy of what remains."""


def token_slices(cache: Any, row: int, num_tokens: int, start: int, end: int) -> Tensors | None:
    """Views of tokens [start, end) of one row, [1, heads, tokens, dim] each; a windowed cache gives the trailing part
    of the span that resuming at `end` or later can need. None when the cache no longer holds that part."""
    reach = trailing_reach(cache)
    if reach is not None:
        start = max(start, end - reach)
    return token_views(cache, row, num_tokens, start, end)


def token_views(cache: Any, row: int, num_tokens: int, start: int, end: int) -> Tensors | None:
    """Views of all of [start, end) of one row, however far a window reaches. None when the cache lost some of it."""
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
    """The first position of a token cache's row that is still in it."""
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
    """Tokens before a position that resuming there needs; None where all of them are needed."""
    traits = known_traits(cache)
    return None if traits.window is None else traits.window(cache) - traits.surplus


def spare_tokens(cache: Any, position: int) -> int:
    """Unused slots after `position` in the buffer of a cache that prefill brought there on any grid that is a divisor
    or a multiple of the step it grows by. Kernels may choose their order of summation by a buffer's strides."""
    return buffer_slots(position, cache.step) - position if type(cache) is lib.KVCache else 0


def fill(cache: Any, tensors: Tensors, position: int) -> None:
    """Put a fresh plain cache at `position`. Token tensors cover all of it, or its trailing `trailing_reach` tokens,
    and `spare_tokens` after it."""
    traits = known_traits(cache)
    if traits.fill is None:
        raise ValueError(f"cache class {label_of(cache)} holds a batch and cannot be restored")
    if traits.kind is not StateKind.RECURRENT and tensors[0] is None:
        return  # the model never used this cache
    traits.fill(cache, tensors, position)


def can_cut(cache: Any) -> bool:
    """Whether a leaf can be cut back to any position before its own."""
    traits = known_traits(cache)
    return traits.cut is not None or _is_unused(cache)


def cut_back(cache: Any, num_tokens: int, position: int) -> None:
    """Bring a plain leaf at `num_tokens` to `position`, at least 1, in place; evaluated where anything was copied.
    Raises ValueError where it cannot be cut there."""
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
    # Copies, since a view would hold all of what it is a view of.
    copies = tuple(mx.concatenate([tensor[..., :end, :], tensor[..., :0, :]], axis=-2) for tensor in tensors)
    evaluate(copies)
    traits.fill(cache, copies, position)


def _is_unused(cache: Any) -> bool:
    """Whether it is a leaf for tokens that the model never used."""
    traits = known_traits(cache)
    return traits.kind is not StateKind.RECURRENT and traits.tensors(cache)[0] is None
