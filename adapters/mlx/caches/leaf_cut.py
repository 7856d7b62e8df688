"""One leaf, cut back to a position before its own: where all tokens lie in a buffer, and nowhere else. A window that
has moved on has lost what an earlier position needs, and a recurrent state is at one position only.
"""

from typing import Any, cast

import mlx.core as mx

from adapters.mlx.arrays import evaluate
from adapters.mlx.caches.classes import Tensors, known_traits, label_of
from adapters.mlx.caches.leaf_state import fill
from domain.memory.buffer_slots import buffer_slots
from domain.state_layout import StateKind

UNUSED_SHARE = 2
"""Of a buffer that would be filled to less than one part in so many what remains is copied, and the rest let go."""


def first_cut(cache: Any, num_tokens: int) -> int:
    """The first position that a plain leaf at `num_tokens` can be cut back to."""
    traits = known_traits(cache)
    is_unused = traits.kind is not StateKind.RECURRENT and traits.tensors(cache)[0] is None
    return 1 if is_unused or traits.cut is not None else num_tokens


def cut_back(cache: Any, fresh: Any, num_tokens: int, position: int) -> Any:
    """The plain leaf at `position`, evaluated where anything was copied. `fresh`: an empty one of the same kind. The
    given one is not to be used afterwards. Raises ValueError where it cannot be cut there."""
    traits = known_traits(cache)
    tensors = traits.tensors(cache)
    if traits.kind is not StateKind.RECURRENT and tensors[0] is None:
        return cache  # the model never used it
    if position < first_cut(cache, num_tokens):
        raise ValueError(f"a {label_of(cache)} of {num_tokens} tokens cannot be cut back to {position}")
    if position == num_tokens:
        return cache
    assert traits.cut is not None
    num_slots = cast(mx.array, tensors[0]).shape[-2]
    if position * UNUSED_SHARE < num_slots:
        end = min(num_slots, buffer_slots(position, getattr(cache, "step", 1)))
        fill(fresh, _copies(tuple(cast(mx.array, tensor)[..., :end, :] for tensor in tensors)), position)
        return fresh
    traits.cut(cache, position)
    return cache


def _copies(views: Tensors) -> Tensors:
    """Evaluated: a view would hold all of what it is a view of."""
    copies = tuple(mx.concatenate([view, view[..., :0, :]], axis=-2) for view in views if view is not None)
    evaluate(copies)
    return copies


__all__ = ("cut_back", "first_cut")
