"""A record's frame put together by the kernel: its pieces lie in runs of pages, which mostly follow each other.

    file     |header piece 1      ..|header piece 2      ..|     ...     |header piece 3  ..|
    frame           |piece 1       |piece 2       |               |piece 3   |
                    one call: between two pieces that lie near each other, bytes that nobody wants are read too

Each look at a piece through the map gives up the interpreter's lock and has to win it back, and so does each call that
checks it or decodes it: with eight threads, that takes longer than the bytes do. So where the pieces lie is read out of
the leaf pages that name them, over a hundred at a time, and all bytes come by a call or two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import lmdb
import numpy as np

from adapters.lmdb.environment import Tree, Trees
from adapters.lmdb.page_file import PageFile
from adapters.lmdb.rows import PIECE_KEY_BYTES, piece_key

_MAX_GAP_BYTES = 1 << 16
"""Between two pieces that are read by one call."""

_MAX_VIEWS = 1000
"""Of one call, and two more: systems take 1024."""

_junk = bytearray(_MAX_GAP_BYTES)
"""Written by all, read by nobody."""

_MAX_PAGES = 1 << 40
"""More than any file has."""

_HEADER_BYTES = 16
_BIG = 1
_NODE = np.dtype(
    [
        ("low", "<u2"),
        ("high", "<u2"),
        ("flags", "<u2"),
        ("key_bytes", "<u2"),
        ("record", ">u8"),
        ("piece", ">u4"),
        ("page", "<u8"),
    ]
)
"""Of a leaf page, as LMDB lays it out: a piece that lies in pages of its own."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """`take_memory`: so many bytes, not initialised, writable and flat, the caller's for as long as a view of them
    lives; from any thread. `worth_bytes`: a smaller frame lies in a few pieces, which cost less than this."""

    take_memory: Callable[[int], memoryview]
    worth_bytes: int = 1 << 20


class Pieces(NamedTuple):
    """Those of a record that hold a part of its stream: from `within` in the first on, cut where they end and begin
    (`cuts`, from 0 to the part's length)."""

    record: int
    first: int
    within: int
    cuts: list[int]

    @classmethod
    def of(cls, record: int, offset: int, length: int, piece_bytes: int) -> "Pieces":
        """`length`: not 0."""
        before, within = divmod(offset, piece_bytes)  # piece 0 is the head
        return cls(record, before + 1, within, [0, *range(piece_bytes - within, length, piece_bytes), length])

    @property
    def last(self) -> int:
        return self.first + len(self.cuts) - 2


def gather(txn: "lmdb.Transaction[memoryview]", trees: Trees, file: PageFile, pieces: Pieces, out: memoryview) -> bool:
    """Fill `out` with the pieces. False where the map has to be read instead: it knows why. Raises Damaged, OSError."""
    places = _places(txn, trees.dat, file, pieces)
    if places is None:
        return False
    junk = memoryview(_junk)
    views: list[memoryview] = []
    within, start, end = pieces.within, 0, 0
    for piece, (at, until) in enumerate(pairwise(pieces.cuts), pieces.first):
        length = until - at
        if piece not in places:
            # What is too small for pages of its own lies in the leaf page.
            value = txn.get(piece_key(pieces.record, piece), db=trees.dat)
            if value is None or not within + length <= value.nbytes < file.page_bytes:
                return False
            out[at:until] = value[within : within + length]
            within = 0
            continue
        offset, size_bytes = places[piece]
        if size_bytes < within + length:
            return False
        offset += within
        within = 0
        if views and end < offset <= end + _MAX_GAP_BYTES and len(views) < _MAX_VIEWS:
            views += (junk[: offset - end], out[at:until])
        else:
            if views and not file.read(start, views):
                return False
            start, views = offset, [out[at:until]]
        end = offset + length
    return not views or file.read(start, views)


def _places(
    txn: "lmdb.Transaction[memoryview]", tree: Tree, file: PageFile, pieces: Pieces
) -> dict[int, tuple[int, int]] | None:
    """By piece: offset in the file and bytes; without those in leaf pages. None when the pages are not understood."""
    found: dict[int, tuple[int, int]] = {}
    cursor, piece = txn.cursor(tree), pieces.first
    while piece <= pieces.last and cursor.set_key(piece_key(pieces.record, piece)):
        page = file.leaf_page(cursor.key())
        if page is None:
            return None
        fresh = _places_in(page, pieces.record, file.page_bytes)
        found |= fresh
        piece = max(max(fresh, default=0), piece) + 1
    return found


def _places_in(page: bytes, record: int, page_bytes: int) -> dict[int, tuple[int, int]]:
    """Of the pieces of one record in a leaf page."""
    words = np.frombuffer(page, np.uint16)
    starts = words[_HEADER_BYTES // 2 : max(int(words[6]), _HEADER_BYTES) // 2].astype(np.int64)
    starts = starts[starts <= page_bytes - _NODE.itemsize]
    nodes = np.frombuffer(page, np.uint8)[starts[:, None] + np.arange(_NODE.itemsize)].view(_NODE)[:, 0]
    is_ours = (nodes["flags"] == _BIG) & (nodes["key_bytes"] == PIECE_KEY_BYTES) & (nodes["record"] == record)
    nodes = nodes[is_ours & (nodes["page"] < _MAX_PAGES)]
    sizes = nodes["low"].astype(np.int64) | nodes["high"].astype(np.int64) << 16
    offsets = nodes["page"].astype(np.int64) * page_bytes + _HEADER_BYTES
    return dict(zip(nodes["piece"].tolist(), zip(offsets.tolist(), sizes.tolist(), strict=True), strict=True))


__all__ = ("Gathering", "Pieces", "gather")
