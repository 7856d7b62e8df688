"""Full KV of several sequences in one buffer with spare rows: a row that joins is written into it, one that leaves is
replaced by a later row.

mlx-lm's own batch cache copies every row when one joins or leaves. This class is used like it, and its rows are
right-justified too:

    buffer [capacity in rows, heads, slots, dim]

                 slot 0      padding of row          idx
    row 0        [ padding   | tokens               ][ free slots ]
    row 1        [ tokens                           ][ free slots ]
    spare row    [ stale values of an earlier row   ][            ]

A stale value may be infinite or NaN, and times zero it is not zero: so a row that joins gets zeros in its padding and
in its free slots, because attention may read the whole buffer (`cuda.attention`). Keys and values are copied together
if a buffer must change its size, so at most one layer is held twice. Nothing here waits for several layers.

Keys, and values, are one array, or those that they are quantised to (`quantised`).
"""

from collections.abc import Sequence
from typing import Any
from weakref import ref

import mlx.core as mx

from adapters.mlx.runtime.arrays import evaluate
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from domain.memory.shape import buffer_slots

lib: Any = mlx_lm_module("models.cache")
"""mlx-lm's cache module."""

_SPARE_SHARE = 4
"""A buffer is made smaller when a quarter of its rows are spare, or a quarter of its slots is padding of all rows."""


def held_by(cache: Any) -> list[mx.array]:
    """The buffers of full KV, plain or of a batch: the keys' and the values'; empty before the first token. These are
    the objects that the cache holds, so an update in place is seen there."""
    if cache.keys is None:
        return []
    return [cache.keys, cache.values] if isinstance(cache.keys, mx.array) else [*cache.keys, *cache.values]


def hold(cache: Any, buffers: Sequence[mx.array]) -> None:
    """Gives full KV these buffers, in the order of `held_by`."""
    half = len(buffers) // 2
    cache.keys, cache.values = buffers if half == 1 else (tuple(buffers[:half]), tuple(buffers[half:]))


class OneRow:
    """A mark of classes of full KV of one sequence, beside mlx-lm's own, that become rows."""


class Positions:
    """The positions of rows as arrays, shared by all layers: a step advances one array instead of one a layer.
    `padding`: slots before each row."""

    def __init__(self, padding: Sequence[int], end: int) -> None:
        self.padding = list(padding)
        self.left_padding = mx.array(self.padding)
        self._end, self._offset = end, mx.array([end - left for left in self.padding])

    def at(self, end: int) -> mx.array:
        """The number of tokens of each row if the rows end at this slot, int32 [rows]; lazy."""
        if end != self._end:
            self._offset, self._end = self._offset + (end - self._end), end
        return self._offset


class KVRows(lib.BatchKVCache):  # type: ignore[misc]
    """A batch cache for full KV, made from a plain cache, whose buffer becomes that of the first row."""

    _idx: int
    _positions: Positions
    offset: mx.array
    left_padding: mx.array
    num_passes_together: int
    """The number of forward passes since a row joined or left."""

    def __init__(self, first: Any) -> None:
        self._right_padding = None
        self._fetched: tuple[ref[mx.array], ...] = ()
        self.num_passes_together = 0
        self.keys, self.values = first.keys, first.values
        self._place([0], first.offset)

    @property
    def num_rows(self) -> int:
        return len(self._padding)

    @property
    def _padding(self) -> list[int]:
        return self._positions.padding

    @property
    def capacity(self) -> int:
        """The number of rows that fit in the buffer."""
        return held_by(self)[0].shape[0] if self.keys is not None else self.num_rows

    @property
    def num_slots(self) -> int:
        return held_by(self)[0].shape[2] if self.keys is not None else 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        keys, values = self.write([keys, values])
        self._fetched = ref(keys), ref(values)  # holding a view would make updates copy
        return keys, values

    def write(self, added: Sequence[mx.array]) -> list[mx.array]:
        """Writes the next tokens of all rows, in the order of `held_by`; returns views of all tokens."""
        rows, start, end = self.num_rows, self._idx, self._idx + added[0].shape[2]
        if self.keys is None:
            slots = buffer_slots(end, self.step)
            hold(self, [mx.zeros((*one.shape[:2], slots, one.shape[3]), one.dtype) for one in added])
        elif end > self.num_slots:
            hold(self, self._resized(self.capacity, end, 0))
        self.offset = self._positions.at(end)
        self._idx, self.num_passes_together = end, self.num_passes_together + 1
        buffers = held_by(self)
        for buffer, one in zip(buffers, added, strict=True):
            buffer[:rows, :, start:end] = one
        return [buffer[:rows, :, :end] for buffer in buffers]

    def is_last_fetched(self, keys: object, values: object) -> bool:
        """True if these are the array objects that the last update returned."""
        return len(self._fetched) == 2 and self._fetched[0]() is keys and self._fetched[1]() is values

    def make_mask(self, num_tokens: int, return_array: bool = False, window_size: int | None = None) -> mx.array | None:
        """The mask, or None if every row may see all slots: without one, attention is a single operation on a GPU."""
        if num_tokens == 1 and window_size is None and not any(self._padding):
            return None
        how = {"return_array": return_array, "window_size": window_size}
        mask: mx.array = lib.BatchKVCache.make_mask(self, num_tokens, **how)
        return mask

    def share_positions(self, other: "KVRows") -> None:
        """Uses another layer's position arrays if the positions are the same."""
        if self._positions is not other._positions and self._idx == other._idx and self._padding == other._padding:
            self._stand(other._positions, self._idx)

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        rows, end = self.num_rows, self._idx
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def make_room(self, num_tokens: int) -> None:
        """Grows the buffer for `num_tokens` more of every row, before a forward pass would let all layers grow at
        once."""
        if self.keys is not None and self._idx + num_tokens > self.num_slots:
            self._resize(self.capacity, self._idx + num_tokens, 0)

    def trim(self, n: int) -> int:
        """Drops the last `n` tokens of every row, whose slots keep stale values. Returns `n`."""
        self._idx -= n
        self.offset = self._positions.at(self._idx)
        return n

    def append(self, rows: Sequence[Any], capacity: int) -> None:
        """Copies plain caches in as the last rows. `capacity`: the number of rows to allocate if the buffer has to
        grow. If this raises, the batch is unchanged."""
        if any((row.keys is None) != (self.keys is None) for row in rows):
            raise ValueError("the row has state for a layer that is unused in the batch")
        if self.keys is None:
            self._place([*self._padding, *(0 for _ in rows)], self._idx)
            return
        first, count = self.num_rows, self.num_rows + len(rows)
        longest = max(row.offset for row in rows)
        shift = max(0, longest - self._idx)
        if count > self.capacity or shift:
            room = max(capacity, count) if count > self.capacity else self.capacity
            self._resize(room, max(self.num_slots, self._idx + shift), shift)
        end = self._idx
        paddings = [end - row.offset for row in rows]
        for at, row, padding in zip(range(first, count), rows, paddings, strict=True):
            for mine, theirs in zip(held_by(self), held_by(row), strict=True):
                if padding:
                    mine[at : at + 1, :, :padding] = mx.zeros((), mine.dtype)
                mine[at : at + 1, :, padding:end] = theirs[..., : row.offset, :]
                if end < self.num_slots:
                    mine[at : at + 1, :, end:] = mx.zeros((), mine.dtype)
        evaluate(held_by(self))
        self._place([*self._padding, *paddings], end)
        self.num_passes_together = 0

    def cut(self, num_rows: int) -> None:
        """Drops the rows after the first `num_rows`."""
        self._place(self._padding[:num_rows], self._idx)
        self.num_passes_together = 0

    def narrow(self, rows: Sequence[int]) -> None:
        """Keeps these rows in this order: each stays in its place, or fills the place of a row that is dropped."""
        count, buffers = len(rows), held_by(self)
        assert all(row in (at, *range(count, self.num_rows)) for at, row in enumerate(rows))
        for at, row in enumerate(rows):
            if row != at and buffers:
                moved = [mx.take(buffer, mx.array([row]), axis=0) for buffer in buffers]
                evaluate(moved)  # a view of the buffer would make the update copy all of it
                for buffer in buffers:
                    buffer[at : at + 1] = moved.pop(0)
                evaluate(buffers)
        self._place([self._padding[row] for row in rows], self._idx)
        self.num_passes_together = 0
        common = min(self._padding)
        is_roomy = self.capacity - count > max(1, count // _SPARE_SHARE)
        if buffers and (is_roomy or common > max(self.step, self._idx // _SPARE_SHARE)):
            self._resize(count, self._idx - common, -common)

    def fit(self) -> None:
        """Frees the spare rows."""
        if self.capacity > self.num_rows:
            self._resize(self.num_rows, self._idx, 0)

    def take(self, row: int) -> Any:
        """A plain copy of a row."""
        plain = self._plain()
        if self.keys is not None:
            start, end = self._padding[row], self._idx
            plain.offset = end - start
            hold(plain, [_with_slots(one[row : row + 1, :, start:end], self.step) for one in held_by(self)])
            evaluate(held_by(plain))
        return plain

    def only_row(self) -> Any:
        """The first row as a plain cache over this buffer."""
        plain, start = self._plain(), self._padding[0]
        plain.offset = self._idx - start
        if self.keys is not None:
            hold(plain, [buffer[:1, :, start:] for buffer in held_by(self)])
        return plain

    def _plain(self) -> Any:
        """A fresh cache of one sequence."""
        return lib.KVCache()

    def _resize(self, capacity: int, num_slots: int, shift: int) -> None:
        buffers = self._resized(capacity, num_slots, shift)
        evaluate(buffers)
        hold(self, buffers)
        self._place([padding + shift for padding in self._padding], self._idx + shift)

    def _resized(self, capacity: int, num_slots: int, shift: int) -> list[mx.array]:
        """Buffers of at least that size with all rows in them, `shift` slots further right; a negative shift removes
        padding."""
        found: list[mx.array] = []
        start, end, rows = max(0, -shift), self._idx, self.num_rows
        slots = buffer_slots(max(num_slots, end + shift + 1), self.step)
        for old in held_by(self):
            new = mx.zeros((capacity, old.shape[1], slots, old.shape[3]), old.dtype)
            new[:rows, :, start + shift : end + shift] = old[:rows, :, start:end]
            found.append(new)
        return found

    def _place(self, padding: Sequence[int], end: int) -> None:
        self._stand(Positions(padding, end), end)

    def _stand(self, positions: Positions, end: int) -> None:
        self._positions, self._idx = positions, end
        self.left_padding, self.offset = positions.left_padding, positions.at(end)


def _with_slots(tokens: mx.array, step: int) -> mx.array:
    """A copy with a spare slot at least. Without one MLX would return the view itself, which keeps the whole buffer
    alive."""
    buffer = mx.zeros((*tokens.shape[:2], buffer_slots(tokens.shape[2] + 1, step), tokens.shape[3]), tokens.dtype)
    buffer[:, :, : tokens.shape[2]] = tokens
    return buffer


def grow(cache: Any, num_tokens: int) -> list[mx.array]:
    """Grows a plain cache of full KV for `num_tokens` more and returns its new arrays, lazy; empty if nothing had to
    grow. mlx-lm's class would copy all of it every 256 tokens. Other classes are left alone."""
    buffers = held_by(cache) if is_plain(cache) else []
    if not buffers or cache.offset + num_tokens <= buffers[0].shape[-2]:
        return []
    slots = buffer_slots(cache.offset + num_tokens, cache.step)
    hold(cache, [_grown(buffer[..., : cache.offset, :], slots) for buffer in buffers])
    return held_by(cache)


def is_plain(cache: Any) -> bool:
    """True if it is full KV of one sequence, which becomes a row."""
    return type(cache) is lib.KVCache or isinstance(cache, OneRow)


def _grown(tokens: mx.array, num_slots: int) -> mx.array:
    """A buffer that begins with these tokens."""
    spare = (*tokens.shape[:2], num_slots - tokens.shape[2], tokens.shape[3])
    return mx.concatenate([tokens, mx.zeros(spare, tokens.dtype)], axis=-2)
