"""The file behind the map, read by the system's own calls: many pages at once, put where they belong, by the kernel.

LMDB writes committed pages to the file and maps the same file, so both show the same bytes, and none that a read
transaction can reach changes while it lives. That the file is the one of the map is proven by a page of it before
anything else is believed; where it does not hold, or the system has no such call, the map alone is read.
"""

import ctypes
import os
from collections.abc import Sequence
from errno import EINVAL, ENOSYS, EOPNOTSUPP, EPERM
from mmap import PAGESIZE
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np

from adapters.lmdb.faults import Damaged

_HEADER = Struct("<QHHHH")
_LEAF = 2
_NO_SUCH_CALL = {ENOSYS, EOPNOTSUPP, EINVAL, EPERM}
"""The last from what confines a process."""


class PageFile:
    """Any thread, between `open` and `close`, inside of a transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1
        self.page_bytes = 0
        self._is_proven: bool | None = None

    def open(self, page_bytes: int) -> None:
        """`page_bytes`: of the database. One that cannot be opened is not usable, and nothing else."""
        self.page_bytes = page_bytes
        # A map is aligned to this machine's pages: larger ones of another machine's file need not be.
        self._is_proven = None if hasattr(os, "preadv") and page_bytes <= PAGESIZE else False
        try:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._is_proven = False

    def close(self) -> None:
        """Repeating it does nothing."""
        handle, self._handle, self._is_proven = self._handle, -1, False
        if handle >= 0:
            os.close(handle)

    @property
    def is_usable(self) -> bool:
        """False: read the map."""
        return self._is_proven is not False

    def leaf_page(self, key: memoryview) -> bytes | None:
        """The page of a tree in which this key lies in the map; None when it is not a page of this file as it should
        be."""
        address = np.frombuffer(key, np.uint8).ctypes.data // self.page_bytes * self.page_bytes
        mapped: Any = (ctypes.c_char * self.page_bytes).from_address(address)
        page = bytes(mapped)
        number, _, flags, _, _ = _HEADER.unpack_from(page)
        if self._is_proven is None:
            self._is_proven = self._has_page(page, number * self.page_bytes)
        return page if self._is_proven and flags == _LEAF else None

    def _has_page(self, page: bytes, offset: int) -> bool:
        """False as well where the system, or the file system, refuses the call that `read` makes. Raises OSError."""
        found = bytearray(len(page))
        try:
            is_whole = offset < 1 << 62 and os.preadv(self._handle, [found], offset) == len(page)
            return is_whole and bytes(found) == page
        except OSError as failure:
            if failure.errno not in _NO_SUCH_CALL:
                raise
            return False

    def read(self, offset: int, views: Sequence[memoryview]) -> bool:
        """Fill consecutive bytes of the file into these; one call, without the interpreter's lock. False when the
        system gave fewer. Raises OSError, or Damaged when the file has become shorter than that."""
        size_bytes = sum(view.nbytes for view in views)
        if os.preadv(self._handle, views, offset) == size_bytes:
            return True
        if os.fstat(self._handle).st_size < offset + size_bytes:
            raise Damaged(f"the database ends within a record, before byte {offset + size_bytes}")
        return False


__all__ = ("PageFile",)
