"""One leaf of a batch: rows put into it and taken out of it, each result evaluated.

Nothing returned shares memory with the batch it came from, unless it says so: while a view is held every update copies
all rows.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

import mlx.core as mx

from adapters.mlx.arrays import evaluate, token_array
from adapters.mlx.caches.classes import known_traits, lib
from adapters.mlx.caches.kv_rows import KVRows


def is_plain(cache: Any) -> bool:
    """Whether a batch has a class of its own for it."""
    return type(cache) in (lib.KVCache, lib.RotatingKVCache)


def _as_rows(cache: Any) -> Any:
    """A batch of one from a plain leaf; recurrent states are the same either way."""
    if type(cache) is lib.KVCache:
        return KVRows(cache)
    return cache.merge([cache]) if type(cache) is lib.RotatingKVCache else cache


def with_rows(cache: Any, plain: Sequence[Any], capacity: int) -> Any:
    """The leaf, of a batch or plain, with these plain ones as further rows. When this raises it is what it was."""
    rows = _as_rows(cache)
    if type(rows) is KVRows:
        rows.append(plain, capacity)
    else:
        rows = copy(rows)  # until the longer one is there, the shorter one counts
        if type(rows) is lib.ArraysCache:
            rows.cache = [_stacked(states) for states in zip(*(one.cache for one in (rows, *plain)), strict=True)]
        else:
            rows.extend(plain[0].merge(plain))
        _evaluate(rows)
    return rows


def _stacked(states: Sequence[mx.array | None]) -> mx.array | None:
    """Rows of one recurrent state. Raises ValueError where only some have it."""
    found = [state for state in states if state is not None]
    if len(found) not in (0, len(states)):
        raise ValueError("a row's model used a state that another's did not")
    return mx.concatenate(found) if found else None


def first_rows(cache: Any, count: int, is_plain: bool) -> Any:
    """Undo `with_rows` without needing memory for it."""
    if type(cache) is KVRows:
        cache.cut(count)
        return cache.only_row() if is_plain else cache
    cache = copy(cache)
    if type(cache) is lib.ArraysCache:
        cache.cache = [None if state is None else state[:count] for state in cache.cache]
        return cache
    cache.keys, cache.values = cache.keys[:count], cache.values[:count]
    cache.offset, cache.left_padding = cache.offset[:count], cache.left_padding[:count]
    return cache.extract(0) if is_plain else cache


def narrowed(cache: Any, rows: Sequence[int]) -> Any:
    """Only these rows, in this order; full KV is narrowed in place."""
    if type(cache) is KVRows:
        cache.narrow(rows)
        return cache
    narrow = copy(cache)
    narrow.filter(token_array(rows))
    _evaluate(narrow)
    return narrow


def taken(cache: Any, row: int) -> Any:
    """A plain copy of one row."""
    if type(cache) is KVRows:
        return cache.take(row)
    if type(cache) is not lib.ArraysCache:
        alone = copy(cache)  # `extract` alone may give a view
        alone.filter(token_array([row]))
        plain = alone.extract(0)
        _evaluate(plain)
        return plain
    plain = lib.ArraysCache(len(cache.cache))  # its own `extract` fails on slots that are empty
    plain.cache = [None if tensor is None else mx.take(tensor, mx.array([row]), axis=0) for tensor in cache.cache]
    _evaluate(plain)
    return plain


def _evaluate(cache: Any) -> None:
    arrays = [tensor for tensor in known_traits(cache).tensors(cache) if tensor is not None]
    kept = (getattr(cache, name, None) for name in ("left_padding", "offset"))
    evaluate([*arrays, *(found for found in kept if isinstance(found, mx.array))])


__all__ = ("first_rows", "is_plain", "narrowed", "taken", "with_rows")
