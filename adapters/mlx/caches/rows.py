"""Caches of several sequences: forked from one, put together as the rows of a batch, and taken apart again.

Memory may be shared: MLX copies an array that somebody else holds before it writes into it. Python array objects may
not: an update in place rebinds the object for everybody who holds it. So a fork has array objects of its own over the
same memory.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import mlx.core as mx

from adapters.mlx.arrays import token_array
from adapters.mlx.caches.classes import children_of, label_of, lib, traits_of
from adapters.mlx.caches.layout import Caches, leaves


def fork(caches: Caches) -> Caches:
    """The same state once more. Both may be updated, and the first update of an array copies it; until then the memory
    is shared."""
    return deepcopy(caches)


def unbatchable(caches: Caches) -> str:
    """Names of the cache classes that cannot share a batch; empty when all can."""
    found = {label_of(cache) for cache in leaves(caches) if not ((traits := traits_of(cache)) and traits.can_batch)}
    return ", ".join(sorted(found))


def recurrent_shapes(caches: Caches) -> list[tuple[int, ...] | None]:
    """Shapes of all recurrent states without the row axis. Some grow over a sequence's first tokens, and only rows of
    equal shapes can share a batch."""
    states = [tensor for cache in leaves(caches) if type(cache) is lib.ArraysCache for tensor in cache.cache]
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
    children = children_of(cache)
    if children is not None:
        return lib.CacheList(*(_take(child, row) for child in children))
    if type(cache) is not lib.ArraysCache:
        return cache.extract(row)
    plain = lib.ArraysCache(len(cache.cache))  # its own `extract` fails on slots that are empty
    plain.cache = [None if tensor is None else mx.contiguous(tensor[row : row + 1]) for tensor in cache.cache]
    return plain


__all__ = ("extend", "fork", "keep_rows", "merge", "recurrent_shapes", "take_row", "unbatchable")
