"""The headers of the last state of a database that is whole on the disk, for a store whose commits are not synced.

What a header leads to survives a power cut if it was synced and no page of it was used again since. LMDB uses no page
again that a reader may see. So a reader stays at the last synced state until there is a later one:

    headers read, reader begun ─► database synced, commits go on ─► headers kept here ─► reader of the last point ended

After a power cut the headers are put back, which makes the database what it was when they were read. A point is
worth nothing once somebody commits without its reader, or beside another file. So whoever opens the database makes a
point of its own before anything is committed, and forgets the one that is there before the file is replaced or mapped
anew. Then, and until the next point, a power cut leaves nothing.
"""

import os
from pathlib import Path
from struct import Struct, error

from adapters.lmdb.faults import Damaged
from adapters.lmdb.private_files import open_private, read_private, remove_durably, replace_durably, sync_file
from adapters.lmdb.rows import opened, sealed

_NAME = b"cairn sync point"
_PAGE = Struct("<I")
_HEADER_BYTES = 512
"""More than LMDB's header takes of its page, and a sector: the rest of the page is not used."""


class SyncPoint:
    """`data`: the database. Nobody may write to it during `headers` and `restore`. Methods raise OSError."""

    def __init__(self, path: Path, data: Path) -> None:
        self.path = path
        self._data = data

    def headers(self, page_bytes: int) -> bytes:
        """Of the database as it is: what `keep` takes once it is synced."""
        with self._data.open("rb") as file:
            pages = [os.pread(file.fileno(), _HEADER_BYTES, page * page_bytes) for page in range(2)]
        return _PAGE.pack(page_bytes) + b"".join(pages)

    def keep(self, headers: bytes) -> None:
        replace_durably(self.path, sealed(_NAME, headers))

    def forget(self) -> None:
        remove_durably(self.path)

    def restore(self) -> float | None:
        """Put the headers back, durably. Returns the unix time at which they were kept, as their file has it; None when
        there are none, or no database."""
        try:
            kept_s = self.path.stat().st_mtime
            headers = opened(_NAME, read_private(self.path))
            (page_bytes,) = _PAGE.unpack_from(headers)
            handle = open_private(self._data, os.O_RDWR)
        except (FileNotFoundError, Damaged, error):
            return None
        try:
            for page in range(2):
                start = _PAGE.size + page * _HEADER_BYTES
                os.pwrite(handle, headers[start : start + _HEADER_BYTES], page * page_bytes)
            sync_file(handle)
        finally:
            os.close(handle)
        return kept_s


__all__ = ("SyncPoint",)
