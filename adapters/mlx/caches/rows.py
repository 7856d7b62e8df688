"""Caches of several sequences: forked from one, put together as the rows of a batch, and taken apart again.

Rows come and go one layer at a time, each evaluated before the next: beyond the rows themselves at most one layer is
held twice, and a lazy copy of all layers never is. Full KV is written in place (`kv_rows`); windows and recurrent
states, which are small, are copied by mlx-lm's own classes.

Memory may be shared: MLX copies an array that somebody else holds before it writes into it. Python array objects may
not: an update in place rebinds the object for everybody who holds it. So a fork has array objects of its own over the
same memory.
"""

from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from typing import Any

import mlx.core as mx

from adapters.mlx.arrays import evaluate, token_array
from adapters.mlx.caches.classes import children_of, known_traits, label_of, lib, traits_of
from adapters.mlx.caches.kv_rows import KVRows
from adapters.mlx.caches.layout import Caches, leaves


def fork(caches: Caches) -> Caches:
    """The same state once more. Both may be updated, and the first update of an array copies it; until then the memory
    is shared: whoever forks must expect the whole state's bytes once more, as soon as both have computed on."""
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
    """One batch from plain caches, each of which has seen at least one token. The rows stay as they are."""
    batch = fork(rows[0])
    for row in rows[1:]:
        append_row(batch, row, len(rows))
    return batch


def append_row(batch: Caches, row: Caches, capacity: int) -> None:
    """Copy the plain caches `row` in as the last row of `batch`, which may be plain ones of its first row.

    `capacity`: rows to have room for where a buffer must grow. Needs the row's bytes once more, until the caller drops
    the original, and of one layer those of all rows. When this raises, the batch is what it was.
    """
    places = list(_places(batch))
    done = 0
    was_plain = [_is_plain(held[index]) for held, index in places]
    try:
        for (held, index), theirs in zip(places, leaves(row), strict=True):
            held[index] = _with_row(held[index], theirs, capacity)
            done += 1
    except Exception:
        for (held, index), plain in zip(places[:done], was_plain, strict=False):
            held[index] = _without_last(held[index], plain)
        raise


def keep_rows(batch: Caches, rows: Sequence[int]) -> None:
    """Keep these rows of a batch, as `domain.decode_groups.rows_in_place` puts them, and drop the others. When this
    raises, some layers may have done so."""
    for held, index in _places(batch):
        held[index] = _narrowed(held[index], rows)


def take_row(batch: Caches, row: int, *, is_last: bool = False) -> Caches:
    """A plain copy of one row. `is_last`: nobody needs the batch any more, so each layer of it goes with its copy."""
    found = _same_shape(batch)
    for (held, index), (copied, at) in zip(_places(batch), _places(found), strict=True):
        copied[at] = _taken(held[index], row)
        if is_last:
            held[index] = None
    return found


def make_room(batch: Caches, num_tokens: int) -> None:
    """For so many more of every row, where buffers of a batch are full: layer by layer, before a forward pass would
    have all of them grow at once."""
    for cache in leaves(batch):
        if type(cache) is KVRows:
            cache.make_room(num_tokens)


def _places(caches: list[Any]) -> Iterator[tuple[list[Any], int]]:
    """Where each leaf is held, depth first, so that another can be put there."""
    for index, cache in enumerate(caches):
        if children_of(cache) is None:
            yield caches, index
        else:
            cache.caches = list(cache.caches)
            yield from _places(cache.caches)


def _same_shape(caches: Sequence[Any]) -> Caches:
    """Composites of their own over the same leaves."""
    return [
        cache if (children := children_of(cache)) is None else lib.CacheList(*_same_shape(children)) for cache in caches
    ]


def _is_plain(cache: Any) -> bool:
    return type(cache) in (lib.KVCache, lib.RotatingKVCache)


def _as_rows(cache: Any) -> Any:
    """A batch of one from a plain leaf; recurrent states are the same either way."""
    if type(cache) is lib.KVCache:
        return KVRows(cache)
    return cache.merge([cache]) if type(cache) is lib.RotatingKVCache else cache


def _with_row(cache: Any, plain: Any, capacity: int) -> Any:
    rows = _as_rows(cache)
    if type(rows) is KVRows:
        rows.append(plain, capacity)
        return rows
    rows = copy(rows)  # until the longer one is there, the shorter one counts
    rows.extend(_as_rows(plain))
    _evaluate(rows)
    return rows


def _without_last(cache: Any, was_plain: bool) -> Any:
    """Undo `_with_row` without needing memory for it."""
    if type(cache) is KVRows:
        cache.cut(cache.num_rows - 1)
        return cache.only_row() if was_plain else cache
    cache = copy(cache)
    if type(cache) is lib.ArraysCache:
        cache.cache = [None if state is None else state[:-1] for state in cache.cache]
        return cache
    cache.keys, cache.values = cache.keys[:-1], cache.values[:-1]
    cache.offset, cache.left_padding = cache.offset[:-1], cache.left_padding[:-1]
    return cache.extract(0) if was_plain else cache


def _narrowed(cache: Any, rows: Sequence[int]) -> Any:
    if type(cache) is KVRows:
        cache.keep(rows)
        return cache
    narrow = copy(cache)
    narrow.filter(token_array(rows))
    _evaluate(narrow)
    return narrow


def _taken(cache: Any, row: int) -> Any:
    if type(cache) is KVRows:
        return cache.take(row)
    if type(cache) is not lib.ArraysCache:
        plain = cache.extract(row)
        _evaluate(plain)
        return plain
    plain = lib.ArraysCache(len(cache.cache))  # its own `extract` fails on slots that are empty
    plain.cache = [None if tensor is None else mx.contiguous(tensor[row : row + 1]) for tensor in cache.cache]
    _evaluate(plain)
    return plain


def _evaluate(cache: Any) -> None:
    arrays = [tensor for tensor in known_traits(cache).tensors(cache) if tensor is not None]
    kept = (getattr(cache, name, None) for name in ("left_padding", "offset"))
    evaluate([*arrays, *(found for found in kept if isinstance(found, mx.array))])


__all__ = (
    "append_row",
    "fork",
    "keep_rows",
    "make_room",
    "merge",
    "recurrent_shapes",
    "take_row",
    "unbatchable",
)
