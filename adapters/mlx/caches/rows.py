"""Caches of several sequences: forked from one, joined as the rows of a batch, and separated again.

Rows join and leave one layer at a time, each evaluated before the next: beyond the rows themselves at most one layer is
held twice. Full KV is written in place (`kv_rows`); windows and recurrent
states, which are small, are copied by mlx-lm's own classes.

Memory may be shared: MLX copies an array that is held elsewhere before it writes into it. Python array objects may
not: an update in place rebinds the object for every holder. So a fork has array objects of its own over the same
memory.
"""

from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from typing import Any, TypeAlias

import mlx.core as mx
from mlx.utils import tree_map  # pyright: ignore[reportUnknownVariableType]

from adapters.mlx.caches.classes import children_of, known_traits, label_of, lib, traits_of
from adapters.mlx.caches.kv_rows import KVRows, grow, is_plain
from adapters.mlx.caches.leaves import Caches, can_cut, cut_back, leaves
from adapters.mlx.caches.quantised import QuantisedKV, QuantisedRows
from adapters.mlx.runtime.arrays import evaluate, token_array


def fork(caches: Caches) -> Caches:
    """A second, independent state. Memory is shared until the first update of an array copies it: charge the whole
    state's bytes again once both have computed on."""
    return deepcopy(caches)


def repeated(caches: Caches, num_rows: int) -> Caches:
    """A batch of `num_rows` equal states, for a pass after which it is dropped: plain caches work on any number of rows
    at one position. Lazy; `caches` are unchanged."""

    def repeat(value: Any) -> Any:
        return mx.repeat(value, num_rows, 0) if isinstance(value, mx.array) else value

    batch = fork(caches)
    for cache in leaves(batch):
        cache.__dict__ |= tree_map(repeat, vars(cache))
        cache.step = 1  # so that buffers have no room for more tokens
    return batch


def unbatchable(caches: Caches) -> str:
    """Names of the cache classes that cannot share a batch; empty when all can."""
    found = {label_of(cache) for cache in leaves(caches) if not ((traits := traits_of(cache)) and traits.can_batch)}
    return ", ".join(sorted(found))


def recurrent_shapes(caches: Caches) -> list[tuple[int, ...] | None]:
    """The shapes of all recurrent states without the row axis. Some states grow over the first tokens, and only rows
    of equal shapes can share a batch."""
    states = [tensor for cache in leaves(caches) if isinstance(cache, lib.ArraysCache) for tensor in cache.cache]
    return [None if tensor is None else tuple(tensor.shape[1:]) for tensor in states]


def merge(rows: Sequence[Caches]) -> Caches:
    """One batch from plain caches of at least one token each. The rows are unchanged."""
    batch = fork(rows[0])
    append_rows(batch, 1, [fork(row) for row in rows[1:]], len(rows))
    return batch


def append_rows(batch: Caches, num_rows: int, rows: Sequence[Caches], capacity: int) -> None:
    """Moves plain caches in as the last rows of `batch`, which has `num_rows`; it may be plain caches of one.

    `capacity`: the number of rows to allocate if a buffer must grow. Each layer of the rows is freed once it is in the
    batch, so one layer of all rows is held twice and nothing else. If this raises, the batch is unchanged, and so are
    the rows unless there is no memory to take them out again: then they are empty.
    """
    if not rows:
        return
    targets = list(_places(batch))
    sources = [list(_places(row)) for row in rows]
    was_plain = [_is_plain(held[index]) for held, index in targets]
    done = 0
    try:
        for place, (held, index) in enumerate(targets):
            moving = [source[place] for source in sources]
            held[index] = _with_rows(held[index], [owner[at] for owner, at in moving], capacity)
            for owner, at in moving:
                owner[at] = None
            done += 1
    except Exception:
        _take_out(targets[:done], rows, sources, num_rows)
        for (held, index), plain in zip(targets[:done], was_plain, strict=False):
            held[index] = _first_rows(held[index], num_rows, plain)
        raise


def keep_rows(batch: Caches, rows: Sequence[int]) -> None:
    """Keeps these rows of a batch, in the order that `rows_in_place` returns, and drops the others. If this raises,
    some layers have changed."""
    for held, index in _places(batch):
        held[index] = _narrowed(held[index], rows)


def take_row(batch: Caches, row: int, *, is_last: bool = False) -> Caches:
    """A plain copy of one row. `is_last`: the batch is not needed any more, so each of its layers is freed once
    copied."""
    found = _same_shape(batch)
    for (held, index), (copied, at) in zip(_places(batch), _places(found), strict=True):
        copied[at] = _taken(held[index], row)
        if is_last:
            held[index] = None
    return found


def first_position(row: Caches, num_tokens: int) -> int:
    """The first position that plain caches at `num_tokens` can be cut back to: 1 if every layer holds all tokens and
    can be cut, otherwise `num_tokens`."""
    return 1 if all(can_cut(cache) for cache in leaves(row)) else num_tokens


def cut_row(row: Caches, num_tokens: int, position: int) -> None:
    """Brings plain caches at `num_tokens` back to `position`. Raises ValueError if they cannot be cut there."""
    for cache in leaves(row):
        cut_back(cache, num_tokens, position)


def make_room(batch: Caches, num_tokens: int) -> None:
    """Grows full buffers for `num_tokens` more of every row, one layer at a time. Call it before each decode pass,
    which would let all layers grow at once. A pass of several tokens gets windows in the order of their tokens: for
    one that wraps around, mlx-lm's mask lets the shorter rows see a slot too many."""
    first: KVRows | None = None
    for cache in leaves(batch):
        if type(cache) is lib.BatchRotatingKVCache and num_tokens > 1:
            cache._temporal_order()
        if isinstance(cache, KVRows):
            cache.make_room(num_tokens)
            first = first or cache
            cache.share_positions(first)
        elif grown := grow(cache, num_tokens):
            evaluate(grown)


def make_room_ahead(row: Caches, num_tokens: int) -> None:
    """Grows the buffers for a chunk of a prompt, lazily: each layer grows when the chunk is computed there."""
    for cache in leaves(row):
        grow(cache, num_tokens)


def give_back(batch: Caches) -> None:
    """Frees the spare rows of all buffers, one layer at a time."""
    for cache in leaves(batch):
        if isinstance(cache, KVRows):
            cache.fit()


_Place: TypeAlias = tuple[list[Any], int]


def _take_out(
    done: Sequence[_Place], rows: Sequence[Caches], sources: Sequence[Sequence[_Place]], num_rows: int
) -> None:
    """Moves the leaves at these places back to the rows they came from, or leaves the rows empty."""
    try:
        for place, (held, index) in enumerate(done):
            for number, source in enumerate(sources):
                owner, at = source[place]
                owner[at] = _taken(held[index], num_rows + number)
    except Exception:
        for row in rows:
            row.clear()


def _places(caches: list[Any]) -> Iterator[_Place]:
    """The list and index of each leaf, depth first, so that it can be replaced."""
    for index, cache in enumerate(caches):
        if children_of(cache) is None:
            yield caches, index
        else:
            cache.caches = list(cache.caches)
            yield from _places(cache.caches)


def _same_shape(caches: Sequence[Any]) -> Caches:
    """A copy of the composites over the same leaves."""
    return [
        cache if (children := children_of(cache)) is None else lib.CacheList(*_same_shape(children)) for cache in caches
    ]


# ---- one leaf ------------------------------------------------------------------------------------------------------
#
# Each result is evaluated, and shares no memory with the batch it came from unless stated: while a view is held, every
# update copies all rows.


def _is_plain(cache: Any) -> bool:
    """True if a batch uses another class for this leaf."""
    return is_plain(cache) or type(cache) is lib.RotatingKVCache


def _as_rows(cache: Any) -> Any:
    """A batch of one from a plain leaf. Recurrent states have one class for both."""
    if is_plain(cache):
        return QuantisedRows(cache) if isinstance(cache, QuantisedKV) else KVRows(cache)
    return cache.merge([cache]) if type(cache) is lib.RotatingKVCache else cache


def _with_rows(cache: Any, plain: Sequence[Any], capacity: int) -> Any:
    """The leaf, of a batch or plain, with these plain ones as further rows. If this raises, the leaf is unchanged."""
    rows = _as_rows(cache)
    if isinstance(rows, KVRows):
        rows.append(plain, capacity)
    else:
        rows = copy(rows)  # the shorter one stays valid until the longer one is evaluated
        if isinstance(rows, lib.ArraysCache):
            rows.cache = [_stacked(states) for states in zip(*(one.cache for one in (rows, *plain)), strict=True)]
        else:
            rows.extend(plain[0].merge(plain))
        _evaluate(rows)
    return rows


def _stacked(states: Sequence[mx.array | None]) -> mx.array | None:
    """Rows of one recurrent state. Raises ValueError if only some rows have it."""
    found = [state for state in states if state is not None]
    if len(found) not in (0, len(states)):
        raise ValueError("one row has state for a layer that is unused in another row")
    return mx.concatenate(found) if found else None


def _first_rows(cache: Any, count: int, was_plain: bool) -> Any:
    """Undoes `_with_rows` without allocating memory."""
    if isinstance(cache, KVRows):
        cache.cut(count)
        return cache.only_row() if was_plain else cache
    cache = copy(cache)
    if isinstance(cache, lib.ArraysCache):
        cache.cache = [None if state is None else state[:count] for state in cache.cache]
        return cache
    cache.keys, cache.values = cache.keys[:count], cache.values[:count]
    cache.offset, cache.left_padding = cache.offset[:count], cache.left_padding[:count]
    return cache.extract(0) if was_plain else cache


def _narrowed(cache: Any, rows: Sequence[int]) -> Any:
    """A leaf of these rows in this order; full KV is narrowed in place."""
    if isinstance(cache, KVRows):
        cache.narrow(rows)
        return cache
    narrow = copy(cache)
    narrow.filter(token_array(rows))
    _evaluate(narrow)
    return narrow


def _taken(cache: Any, row: int) -> Any:
    """A plain copy of one row."""
    if isinstance(cache, KVRows):
        return cache.take(row)
    if not isinstance(cache, lib.ArraysCache):
        alone = copy(cache)  # `extract` alone may give a view
        alone.filter(token_array([row]))
        plain = alone.extract(0)
        _evaluate(plain)
        return plain
    plain = type(cache)(len(cache.cache))  # its own `extract` fails on slots that are empty
    plain.cache = [None if tensor is None else mx.take(tensor, mx.array([row]), axis=0) for tensor in cache.cache]
    _evaluate(plain)
    return plain


def _evaluate(cache: Any) -> None:
    arrays = [tensor for tensor in known_traits(cache).tensors(cache) if tensor is not None]
    kept = (getattr(cache, name, None) for name in ("left_padding", "offset"))
    evaluate([*arrays, *(found for found in kept if isinstance(found, mx.array))])
