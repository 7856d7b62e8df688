"""Caches of several sequences: forked from one, put together as the rows of a batch, and taken apart again.

Rows come and go one layer at a time, each evaluated before the next: beyond the rows themselves at most one layer is
held twice, and a lazy copy of all layers never is. Full KV is written in place (`kv_rows`); windows and recurrent
states, which are small, are copied by mlx-lm's own classes.

Memory may be shared: MLX copies an array that somebody else holds before it writes into it. Python array objects may
not: an update in place rebinds the object for everybody who holds it. So a fork has array objects of its own over the
same memory.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

from adapters.mlx.arrays import evaluate
from adapters.mlx.caches.classes import children_of, label_of, lib, traits_of
from adapters.mlx.caches.kv_growth import grow
from adapters.mlx.caches.kv_rows import KVRows
from adapters.mlx.caches.layout import Caches, leaves
from adapters.mlx.caches.leaf_rows import first_rows, is_plain, narrowed, taken, with_rows
from adapters.mlx.caches.leaf_state import can_cut, cut_back


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
    append_rows(batch, 1, [fork(row) for row in rows[1:]], len(rows))
    return batch


def append_rows(batch: Caches, num_rows: int, rows: Sequence[Caches], capacity: int) -> None:
    """Move plain caches in as the last rows of `batch`, which has `num_rows`; it may be plain caches of one.

    `capacity`: rows to have room for where a buffer must grow. Each layer of the rows goes as soon as it is in the
    batch, so one layer of all rows is held twice, and nothing else. When this raises, the batch is what it was; so are
    the rows, unless there is no memory to take them out again: then they are empty.
    """
    if not rows:
        return
    targets = list(_places(batch))
    sources = [list(_places(row)) for row in rows]
    was_plain = [is_plain(held[index]) for held, index in targets]
    done = 0
    try:
        for place, (held, index) in enumerate(targets):
            moving = [source[place] for source in sources]
            held[index] = with_rows(held[index], [owner[at] for owner, at in moving], capacity)
            for owner, at in moving:
                owner[at] = None
            done += 1
    except Exception:
        _take_out(targets[:done], rows, sources, num_rows)
        for (held, index), plain in zip(targets[:done], was_plain, strict=False):
            held[index] = first_rows(held[index], num_rows, plain)
        raise


def keep_rows(batch: Caches, rows: Sequence[int]) -> None:
    """Keep these rows of a batch, as `domain.decode_groups.rows_in_place` puts them, and drop the others. When this
    raises, some layers may have done so."""
    for held, index in _places(batch):
        held[index] = narrowed(held[index], rows)


def take_row(batch: Caches, row: int, *, is_last: bool = False) -> Caches:
    """A plain copy of one row. `is_last`: nobody needs the batch any more, so each layer of it goes with its copy."""
    found = _same_shape(batch)
    for (held, index), (copied, at) in zip(_places(batch), _places(found), strict=True):
        copied[at] = taken(held[index], row)
        if is_last:
            held[index] = None
    return found


def first_position(row: Caches, num_tokens: int) -> int:
    """The first position that plain caches at `num_tokens` can be cut back to: any, where every layer can be cut by
    tokens and holds them all, else their own alone."""
    return 1 if all(can_cut(cache) for cache in leaves(row)) else num_tokens


def cut_row(row: Caches, num_tokens: int, position: int) -> None:
    """Bring plain caches at `num_tokens` to `position`. Raises ValueError where they cannot be cut there."""
    for cache in leaves(row):
        cut_back(cache, num_tokens, position)


def make_room(batch: Caches, num_tokens: int) -> None:
    """For so many more of every row, where buffers are full: layer by layer, before a forward pass would have all of
    them grow at once. To be called before each pass of a batch, and of a row that decodes alone."""
    first: KVRows | None = None
    for cache in leaves(batch):
        if type(cache) is KVRows:
            cache.make_room(num_tokens)
            first = first or cache
            cache.share_positions(first)
        elif grown := grow(cache, num_tokens):
            evaluate(grown)


def make_room_ahead(row: Caches, num_tokens: int) -> None:
    """The same for a chunk of a prompt, lazily: each layer grows when the chunk comes to it."""
    for cache in leaves(row):
        grow(cache, num_tokens)


def give_back(batch: Caches) -> None:
    """Make buffers as small as their rows, a layer at a time."""
    for cache in leaves(batch):
        if type(cache) is KVRows:
            cache.fit()


_Place: TypeAlias = tuple[list[Any], int]


def _take_out(
    done: Sequence[_Place], rows: Sequence[Caches], sources: Sequence[Sequence[_Place]], num_rows: int
) -> None:
    """Give rows back what was moved to these places, or leave them empty."""
    try:
        for place, (held, index) in enumerate(done):
            for number, source in enumerate(sources):
                owner, at = source[place]
                owner[at] = taken(held[index], num_rows + number)
    except Exception:
        for row in rows:
            row.clear()


def _places(caches: list[Any]) -> Iterator[_Place]:
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


__all__ = (
    "append_rows",
    "cut_row",
    "first_position",
    "fork",
    "give_back",
    "keep_rows",
    "make_room",
    "make_room_ahead",
    "merge",
    "recurrent_shapes",
    "take_row",
    "unbatchable",
)
