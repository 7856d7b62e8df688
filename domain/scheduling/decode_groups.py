"""Decode groups: the sequences that share a batch cache, which is padded to its longest row.

Padding wastes memory, and bandwidth in every step; a further group reads the weights once more in every step. So a
sequence joins the first group whose padding then takes fewer bytes than the weights, and no more memory than an eighth
of theirs or a quarter of the rows' own. `FREE_PADDING` tokens a row always cost less than another pass. Left padding
four rows of 4096, 128, 128, 128 tokens of a small model would hold 3.4 times the bytes of the four alone.
"""

from collections.abc import Sequence

from domain.memory.shape import MemoryShape

PADDING_OF_WEIGHTS = 1 / 8
PADDING_OF_ROWS = 1 / 4
FREE_PADDING = 512
SPARE_ROWS = 1 / 8


def choose_group(length: int, groups: Sequence[Sequence[int]], shape: MemoryShape) -> int | None:
    """Returns the index of the group that a sequence of `length` tokens should join; None for a group of its own.

    `groups`: the current lengths of each group's rows. Pure; ties go to the earliest group.
    """
    for index, lengths in enumerate(groups):
        if lengths and _may_share((*lengths, length), shape):
            return index
    return None


def padding_bytes(lengths: Sequence[int], shape: MemoryShape) -> int:
    """Returns the bytes of a group of these lengths beyond those of the sequences alone."""
    return len(lengths) * shape.state_bytes(max(lengths)) - sum(map(shape.state_bytes, lengths))


def _may_share(lengths: Sequence[int], shape: MemoryShape) -> bool:
    # In tokens first: short rows of any model pad by less than a pass of its own would cost.
    if max(lengths) * len(lengths) - sum(lengths) <= FREE_PADDING * len(lengths):
        return True
    # All of the weights bound the bandwidth of padding: more of it costs what a pass of its own costs. The larger share
    # bounds its memory: that of the weights where rows are small beside them, else that of the rows.
    held = sum(map(shape.state_bytes, lengths))
    bearable = max(PADDING_OF_ROWS * held, PADDING_OF_WEIGHTS * shape.weight_bytes)
    return padding_bytes(lengths, shape) <= min(shape.weight_bytes, bearable)


def rows_capacity(num_rows: int) -> int:
    """Returns the number of rows to allocate when a batch must grow to `num_rows`, so that most later rows are written
    in place."""
    # Growing copies the whole batch, so a batch that grows row by row would copy it at every admission.
    return num_rows + int(num_rows * SPARE_ROWS)


def rows_in_place(num_rows: int, kept: Sequence[int]) -> list[int]:
    """Returns the rows `kept` of a batch in an order that moves the fewest: the last ones fill the places of those that
    leave, and the others stay."""
    # As many rows come from behind `count` as leave before it, so `pop` always finds one.
    count = len(kept)
    from_behind = [row for row in kept if row >= count]
    staying = {row for row in kept if row < count}
    return [row if row in staying else from_behind.pop(0) for row in range(count)]
