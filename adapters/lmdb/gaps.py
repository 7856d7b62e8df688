"""Bytes of a database file that belong to nothing and may hold what was deleted: LMDB copies them along.

    branch and leaf pages    between the list of nodes and the nodes
    large values             between the end of the value and the end of its last page

They are never read, so zeroing them in place changes nothing for readers. Nobody may write meanwhile.
"""

import os
from pathlib import Path

from adapters.lmdb.faults import Damaged
from adapters.lmdb.structure import Nodes, StructureError, StructureWalk

_HEADER_BYTES = 16
_BIG = 1
_LOWER = slice(12, 14)
_UPPER = slice(14, 16)


class _GapWalk(StructureWalk):
    """The walk that checks a structure, noting where each gap begins and ends."""

    def __init__(self, file: int, page_bytes: int) -> None:
        super().__init__(file, page_bytes)
        self.gaps: list[tuple[int, int]] = []

    def _page(self, number: int, kind: int) -> bytes:
        page = super()._page(number, kind)
        start = number * self._page_bytes
        lower, upper = (int.from_bytes(page[part], "little") for part in (_LOWER, _UPPER))
        if page.count(0, lower, upper) != upper - lower:
            self.gaps.append((start + lower, start + upper))
        return page

    def _extents(self, page: bytes, nodes: Nodes) -> int:
        total = super()._extents(page, nodes)
        for key_at, key_bytes, flags, data_bytes in zip(*(column.tolist() for column in nodes), strict=True):
            if flags & _BIG:
                number = int.from_bytes(page[key_at + key_bytes : key_at + key_bytes + 8], "little")
                end = number * self._page_bytes + _HEADER_BYTES + data_bytes
                self.gaps.append((end, -(-end // self._page_bytes) * self._page_bytes))
        return total


def zero_gaps(data: Path, page_bytes: int) -> None:
    """Raises Damaged when the structure is not sound, and OSError."""
    file = os.open(data, os.O_RDWR | os.O_CLOEXEC)
    try:
        walk = _GapWalk(file, page_bytes)
        walk.run()
        for start, end in walk.gaps:
            os.pwrite(file, bytes(end - start), start)
        os.fsync(file)
    except StructureError as problem:
        raise Damaged(str(problem)) from None
    finally:
        os.close(file)


__all__ = ("zero_gaps",)
