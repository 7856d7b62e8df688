"""The directory of a store: whose it is, who may write, and whether its database can be mapped without harm."""

import fcntl
import os
from pathlib import Path
from struct import Struct

from adapters.lmdb.faults import Damaged
from adapters.lmdb.volume import boot_id, free_bytes, network_file_system
from application.ports.block_store import OpenFailure, StoreOpenError

FORMAT = 1
_FORMAT_TEXT = "cairn block store\nformat "

_PAGE_HEADER = Struct("<QHHI")
_META = Struct("<IIQQ")
_TREE = Struct("<IHHQQQQQ")
_LAST = Struct("<QQ")
_META_FLAG, _MAGIC, _DATA_VERSION, _INTEGER_KEYS = 0x08, 0xBEEFC0DE, 1, 0x08
_NO_ROOT = (1 << 64) - 1
_MAX_DEPTH = 32
_FULL_BYTES = 1 << 20
# The last pages of a transaction may be free ones that were never written; more than this is a truncated file.
_UNWRITTEN_BYTES = 1 << 20


class StoreDirectory:
    """Paths and checks only; nothing here opens LMDB."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data.mdb"
        self.readers = path / "lock.mdb"
        self.damaged = path / "data.damaged"
        self._format = path / "format"
        self._boot = path / "boot"
        self._writer = path / "writer.lock"
        self._writer_file: int | None = None

    def claim(self) -> None:
        """Create or recognise the directory and become its one writer. Raises StoreOpenError."""
        if kind := network_file_system(self.path):
            raise StoreOpenError(OpenFailure.VOLUME, f"{self.path} is on a network file system ({kind})")
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock()
            if not self._format.exists() and not self.data.exists():
                self._format.write_text(f"{_FORMAT_TEXT}{FORMAT}\n")
        except OSError as failure:
            self.release()
            raise StoreOpenError(OpenFailure.VOLUME, f"{self.path} cannot be written: {failure.strerror}") from None
        try:
            self.recognise()
        except StoreOpenError:
            self.release()
            raise

    def recognise(self) -> None:
        """Raises StoreOpenError unless the directory is a store of this format."""
        if not self.path.is_dir():
            raise StoreOpenError(OpenFailure.VOLUME, f"there is no store in {self.path}")
        try:
            text = self._format.read_text(errors="replace")
        except OSError:
            text = ""
        number = text.removeprefix(_FORMAT_TEXT).strip()
        if not text.startswith(_FORMAT_TEXT) or not number.isdecimal():
            raise StoreOpenError(OpenFailure.FOREIGN, f"{self.path} is not a cairn store")
        if int(number) > FORMAT:
            raise StoreOpenError(OpenFailure.NEWER, f"{self.path} has format {number}; this version reads {FORMAT}")

    def release(self) -> None:
        if self._writer_file is not None:
            os.close(self._writer_file)
            self._writer_file = None

    def inspect(self) -> None:
        """Raises Damaged when LMDB would fail on the file, or fault on memory that the file does not back."""
        if not self.data.exists():
            return
        with self.data.open("rb") as file:
            # Pages that the file does not back are fatal to touch, so a missing tail is filled with zeros below: where
            # it was in use after all, checks and LMDB's own tests of a page refuse it.
            size_bytes = os.fstat(file.fileno()).st_size
            if not size_bytes:
                return
            metas = [_read_meta(os.pread(file.fileno(), 4096, 0))]
            page_bytes = metas[0][2]
            metas.append(_read_meta(os.pread(file.fileno(), 4096, page_bytes)))
        last_page = max(metas, key=lambda meta: meta[1])[0]
        missing_bytes = (last_page + 1) * page_bytes - size_bytes
        if metas[1][2] != page_bytes or missing_bytes > (_UNWRITTEN_BYTES if self._writer_file is not None else 0):
            raise Damaged(f"the database has {size_bytes} bytes and needs {size_bytes + missing_bytes}")
        if missing_bytes > 0:
            os.truncate(self.data, size_bytes + missing_bytes)

    def set_aside(self) -> None:
        """Move an unusable database out of the way. One is kept, the larger: what comes after a loss is smaller than
        what was lost. Never call it with the database open."""
        self.readers.unlink(missing_ok=True)
        if self.size_bytes < _size(self.damaged):
            self.data.unlink(missing_ok=True)
        elif self.data.exists():
            self.data.replace(self.damaged)

    def empty(self) -> None:
        self.readers.unlink(missing_ok=True)
        self.data.unlink(missing_ok=True)

    def drop_damaged(self) -> None:
        self.damaged.unlink(missing_ok=True)

    def drop_damaged_beyond(self, quota_bytes: int) -> None:
        """The set-aside database counts against the quota: it goes as soon as both do not fit."""
        if self.damaged.exists() and _size(self.damaged) + self.size_bytes > quota_bytes:
            self.damaged.unlink(missing_ok=True)

    @property
    def size_bytes(self) -> int:
        """Of the database file; 0 when there is none."""
        return _size(self.data)

    def is_volume_full(self) -> bool:
        try:
            return free_bytes(self.path) < _FULL_BYTES
        except OSError:
            return False

    def is_from_other_boot(self) -> bool:
        """Whether a store that does not sync was left open by an earlier run of this machine."""
        if not self._boot.exists():
            return False
        here = boot_id()
        return not here or self._boot.read_text().strip() != here

    def mark_boot(self) -> None:
        self._boot.write_text(boot_id())

    def clear_boot(self) -> None:
        self._boot.unlink(missing_ok=True)

    def _lock(self) -> None:
        handle = os.open(self._writer, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            message = f"{self.path} is being written by another process (pid {holder}); stop it, or read only"
            raise StoreOpenError(OpenFailure.BUSY, message) from None
        except OSError:
            os.close(handle)
            raise
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._writer_file = handle


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_meta(page: bytes) -> tuple[int, int, int]:
    """(last page, transaction, page size) of a meta page. Raises Damaged."""
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
        _, tree_flags, depth, *_, root = _TREE.unpack_from(page, offset)
        if tree_flags != expected or depth > _MAX_DEPTH or (root != _NO_ROOT and root > last_page):
            raise Damaged("the header of the database points outside of it")
    if page_bytes not in (1 << shift for shift in range(9, 17)):
        raise Damaged(f"the database claims pages of {page_bytes} bytes")
    return last_page, transaction, page_bytes


__all__ = ("FORMAT", "StoreDirectory")
