"""mlx-lm's attention on CUDA: by the class of the cache other implementations are tried first, and else mlx-lm's own.

mlx-lm's attention takes the cache whose keys it is given, and treats some classes differently. These are more such
ways; each decides which calls it takes. Everything else is left to mlx-lm.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import mlx.core as mx

from adapters.mlx.attention.fused_rows import FusedRows
from adapters.mlx.attention.short_queries import ShortQueries
from adapters.mlx.caches.kv_rows import KVRows
from adapters.mlx.caches.library import lib
from adapters.mlx.runtime.file_limit import mlx_lm_module

_FAMILIES, _NAME = "mlx_lm.models.", "scaled_dot_product_attention"

_base: Any = mlx_lm_module("models.base")

Attention: TypeAlias = Callable[..., mx.array]
Way: TypeAlias = Callable[[mx.array, Any, Any, Any, float, Any], mx.array | None]
"""Takes queries, keys, values, cache, scale and mask; None where it does not apply."""


class CudaAttention:
    """In place of mlx-lm's function `otherwise`. Compute thread only."""

    def __init__(self, otherwise: Attention, ways: Mapping[type, Sequence[Way]] | None = None) -> None:
        """`ways`: by class of the cache, in the order in which they are asked; None for all there are."""
        self._otherwise = otherwise
        self._ways = _ways() if ways is None else ways

    def __call__(
        self,
        queries: mx.array,
        keys: Any,
        values: Any,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        for way in self._ways.get(cache.__class__, ()) if sinks is None else ():
            if (found := way(queries, keys, values, cache, scale, mask)) is not None:
                return found
        return self._otherwise(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)


def _ways() -> dict[type, Sequence[Way]]:
    return {KVRows: (FusedRows(),), lib.KVCache: (ShortQueries(),)}


def replace_attention() -> CudaAttention:
    """From now on, for all families: they take the function by name when they are imported. Repeating it does
    nothing. Returns what is there instead."""
    otherwise = _base.scaled_dot_product_attention
    if isinstance(otherwise, CudaAttention):
        return otherwise
    replaced = CudaAttention(otherwise)
    for name, module in list(sys.modules.items()):
        if name.startswith(_FAMILIES) and getattr(module, _NAME, None) is otherwise:
            setattr(module, _NAME, replaced)
    return replaced
