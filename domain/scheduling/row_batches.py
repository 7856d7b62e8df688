"""The batches of a pooled request: its rows, each computed once behind the state of its prompt, some in one pass.

    position   0 ............... start ........... ends[0] ....... ends[1]
               |     prompt      |   rows x width   |  rows x width  |
                 chunks            one pass           one pass

The positions of a prompt go on behind it by the padded tokens of its batches, so that a step is planned over both. A
pass holds the prompt's state once a row; a batch has as many rows as the token budget and the memory allow, at least
one. The longest rows come first, so that a batch is as wide as its first row.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from domain.memory.shape import MemoryShape


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The rows of one pass by their index. `width`: the tokens of the longest, to which all are padded. `end`: the
    position behind the batch."""

    rows: tuple[int, ...]
    width: int
    end: int


@dataclass(frozen=True, slots=True)
class RowBatches:
    """The batches behind a prompt of `start` tokens. `state_bytes`: the most that a batch's states hold; `pass_bytes`:
    what the batch that needs most memory takes beyond that."""

    start: int
    batches: tuple[RowBatch, ...] = ()
    state_bytes: int = 0
    pass_bytes: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start

    def at(self, position: int) -> RowBatch:
        """Returns the batch that begins at `position`."""
        return self.batches[bisect_right(self.batches, position, key=lambda batch: batch.end)]


def pack_rows(
    lengths: Sequence[int],
    rows: Iterable[int],
    start: int,
    *,
    budget: int,
    shape: MemoryShape,
    room_bytes: int | None = None,
) -> RowBatches:
    """Returns the batches of `rows`, whose tokens are `lengths[row]`, behind a prompt of `start` tokens. A batch takes
    at most `budget` padded tokens and `room_bytes` (None: any), unless it has one row."""

    def needed(num_rows: int, width: int) -> int:
        return shape.rows_bytes(num_rows, start, width) + shape.pass_bytes(num_rows, start, width)

    def fits(num_rows: int, width: int) -> bool:
        return num_rows * width <= budget and (room_bytes is None or needed(num_rows, width) <= room_bytes)

    groups = list[list[int]]()
    for row in sorted(rows, key=lambda row: -lengths[row]):
        if groups and fits(len(groups[-1]) + 1, lengths[groups[-1][0]]):
            groups[-1].append(row)
        else:
            groups.append([row])
    sizes = [(len(group), lengths[group[0]]) for group in groups]
    ends = accumulate((num_rows * width for num_rows, width in sizes), initial=start)
    next(ends)
    batches = tuple(RowBatch(tuple(group), lengths[group[0]], end) for group, end in zip(groups, ends, strict=True))
    state_bytes = max((shape.rows_bytes(num_rows, start, width) for num_rows, width in sizes), default=0)
    whole_bytes = max((needed(num_rows, width) for num_rows, width in sizes), default=0)
    return RowBatches(start, batches, state_bytes, whole_bytes - state_bytes)
