"""Which sequences decode together. Batch caches are padded to the longest row, so only similar lengths share one.

Left padding four rows of 4096, 128, 128, 128 tokens holds 3.4 times the bytes of the four alone. A sequence joins
the first group in which padding stays within `MAX_PADDING` of the real tokens, or within `FREE_PADDING` tokens a row
(short sequences are cheap to pad and worth batching).
"""

from collections.abc import Sequence

MAX_PADDING = 0.25
FREE_PADDING = 512


def choose_group(length: int, groups: Sequence[Sequence[int]]) -> int | None:
    """Index of the group a sequence of `length` tokens should join; None for a group of its own.

    `groups`: the current lengths of each group's rows. Pure; ties go to the earliest group.
    """
    for index, lengths in enumerate(groups):
        if not lengths:
            continue
        rows = (*lengths, length)
        padding = max(rows) * len(rows) - sum(rows)
        if padding <= MAX_PADDING * sum(rows) or padding <= FREE_PADDING * len(rows):
            return index
    return None


__all__ = ("FREE_PADDING", "MAX_PADDING", "choose_group")
