"""A replacement of mlx-lm's attention, in all families at once: they import the function by name."""

import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

import mlx.core as mx

from adapters.mlx.runtime.mlx_lm import mlx_lm_module

Attention: TypeAlias = Callable[..., mx.array]

_FAMILIES, _NAME = "mlx_lm.models.", "scaled_dot_product_attention"


class Replacement(Protocol):
    """A callable in the place of `original`, which may be a replacement itself."""

    original: Attention


Made = TypeVar("Made", bound=Replacement)


def replace_attention(make: Callable[[Attention], Made], kind: type[Made]) -> Made:
    """Replaces the attention by one that `make` returns, if none of that kind is in place. Returns it."""
    base: Any = mlx_lm_module("models.base")
    original = getattr(base, _NAME)
    found: Any = original
    while found is not None:
        if isinstance(found, kind):
            return found
        found = getattr(found, "original", None)
    made = make(original)
    for name, module in list(sys.modules.items()):
        if name.startswith(_FAMILIES) and getattr(module, _NAME, None) is original:
            setattr(module, _NAME, made)
    return made
