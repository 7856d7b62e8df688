"""A record's frame put together by the kernel: its pieces lie in runs of pages, which mostly follow each other.

    file     |header piece 1      ..|header piece 2      ..|     ...     |header piece 3  ..|
    frame           |piece 1       |piece 2       |               |piece 3   |
                    one call: between two pieces that lie near each other, bytes that nobody wants are read too

Each look at a piece through the map gives up the interpreter's lock and has to win it back, and so does each call that
checks it or decodes it: with eight threads, that takes longer than the bytes do. So where the pieces lie is read out of
the leaf pages that name them, over a hundred at a time, and all bytes come by a call or two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import lmdb
import numpy as np

from adapters.lmdb.environment import Tree
from adapters.lmdb.page_file import PageFile
from adapters.lmdb.rows import PIECE_KEY_BYTES, piece_key

_MAX_GAP_BYTES = 1 << 16
"""Between two pieces that are read by one call."""

_MAX_VIEWS = 1000
"""Of one call: systems take 1024."""

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


class Part(NamedTuple):
    """`length` bytes of a piece from `within` on."""

    piece: int
    within: int
    length: int


def parts_of(offset: int, length: int, piece_bytes: int) -> list[Part]:
    """Where a part of a record's stream lies. Piece 0 is the head."""
    found: list[Part] = []
    end = offset + length
    while offset < end:
        piece, within = divmod(offset, piece_bytes)
        found.append(Part(piece + 1, within, min(piece_bytes - within, end - offset)))
        offset += found[-1].length
    return found


def gather(
    txn: "lmdb.Transaction[memoryview]",
    tree: Tree,
    file: PageFile,
    record: int,
    parts: Sequence[Part],
    out: memoryview,
) -> bool:
    """Fill `out` with the parts, end to end. False where the map has to be read instead: it knows why. Raises Damaged,
    OSError."""
    places = _places(txn, tree, file, record, parts)
    if places is None:
        return False
    junk = memoryview(bytearray(_MAX_GAP_BYTES))
    views: list[memoryview] = []
    start = end = at = 0
    for part in parts:
        target = out[at : at + part.length]
        at += part.length
        place = places.get(part.piece)
        if place is None:
            # What is too small for pages of its own lies in the leaf page.
            value = txn.get(piece_key(record, part.piece), db=tree)
            if value is None or value.nbytes < part.within + part.length or value.nbytes >= file.page_bytes:
                return False
            target[:] = value[part.within : part.within + part.length]
            continue
        offset, size_bytes = place
        if size_bytes < part.within + part.length:
            return False
        offset += part.within
        if views and end < offset <= end + _MAX_GAP_BYTES and len(views) + 2 <= _MAX_VIEWS:
            views += (junk[: offset - end], target)
        else:
            if views and not file.read(start, views):
                return False
            start, views = offset, [target]
        end = offset + part.length
    return not views or file.read(start, views)


def _places(
    txn: "lmdb.Transaction[memoryview]", tree: Tree, file: PageFile, record: int, parts: Sequence[Part]
) -> dict[int, tuple[int, int]] | None:
    """By piece: offset in the file and bytes; without those in leaf pages. None when the pages are not understood."""
    found: dict[int, tuple[int, int]] = {}
    cursor = txn.cursor(tree)
    piece, last = parts[0].piece, parts[-1].piece
    while piece <= last and cursor.set_key(piece_key(record, piece)):
        page = file.leaf_page(cursor.key())
        if page is None:
            return None
        fresh = _places_in(page, record, file.page_bytes)
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


__all__ = ("Gathering", "Part", "gather", "parts_of")
