"""The two headers of a database file, read without LMDB: whether it can be mapped without harm, and how long it is."""

import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from adapters.lmdb.faults import Damaged

_PAGE_HEADER = Struct("<QHHI")
_META = Struct("<IIQQ")
_TREE = Struct("<IHHQQQQQ")
_LAST = Struct("<QQ")
_META_FLAG, _MAGIC, _DATA_VERSION, _INTEGER_KEYS, _NO_FOLDER = 0x08, 0xBEEFC0DE, 1, 0x08, 0x4000
_NO_ROOT = (1 << 64) - 1
_MAX_DEPTH = 32


class Header(NamedTuple):
    """What the newest header says."""

    last_page: int
    transaction: int
    page_bytes: int

    @property
    def file_bytes(self) -> int:
        """How long the file has to be, so that each of its pages can be touched."""
        return (self.last_page + 1) * self.page_bytes


def read_header(data: Path) -> tuple[Header, int] | None:
    """The newest header and the size of the file; None for an empty file. Raises Damaged, OSError.

    The size is read last: whoever writes beside us makes the file longer first and says so in a header afterwards.
    """
    with data.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return None
        first = _read_meta(os.pread(file.fileno(), 4096, 0))
        second = _read_meta(os.pread(file.fileno(), 4096, first.page_bytes))
        if second.page_bytes != first.page_bytes:
            raise Damaged("the headers of the database differ in their page size")
        return max(first, second, key=lambda header: header.transaction), os.fstat(file.fileno()).st_size


def _read_meta(page: bytes) -> Header:
    """Raises Damaged."""
    trees = _PAGE_HEADER.size + _META.size
    last = trees + 2 * _TREE.size
    if len(page) < last + _LAST.size:
        raise Damaged("the database is shorter than its header")
    flags = _PAGE_HEADER.unpack_from(page)[2]
    magic, version = _META.unpack_from(page, _PAGE_HEADER.size)[:2]
    if not flags & _META_FLAG or magic != _MAGIC or version != _DATA_VERSION:
        raise Damaged("the database does not begin with an LMDB header")
    last_page, transaction = _LAST.unpack_from(page, last)
    page_bytes = _TREE.unpack_from(page, trees)[0]
    # A fixed address, or flags that this store never sets, would make LMDB map the file elsewhere or sort it anew.
    if _META.unpack_from(page, _PAGE_HEADER.size)[2]:
        raise Damaged("the database wants to be mapped at an address of its own")
    for offset, expected in ((trees, _INTEGER_KEYS), (trees + _TREE.size, 0)):
        # How the file was named when it was made stands among the first tree's flags.
        _, tree_flags, depth, *_, root = _TREE.unpack_from(page, offset)
        if tree_flags & ~_NO_FOLDER != expected or depth > _MAX_DEPTH or (root != _NO_ROOT and root > last_page):
            raise Damaged("the header of the database points outside of it")
    if page_bytes not in (1 << shift for shift in range(9, 17)):
        raise Damaged(f"the database claims pages of {page_bytes} bytes")
    return Header(last_page, transaction, page_bytes)
