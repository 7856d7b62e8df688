"""The directory of a store: whose it is, who may write, and whether its database can be mapped without harm."""

import os
from pathlib import Path

from adapters.lmdb.faults import Damaged
from adapters.lmdb.file.private_files import (
    FILE_MODE,
    FOLDER_MODE,
    close_to_others,
    make_folder,
    open_private,
    read_private,
    refuse_file_of_others,
    refuse_folder_of_others,
    remove_durably,
    replace_durably,
    sync_folder,
)
from adapters.lmdb.file.volume import free_bytes, network_file_system
from adapters.lmdb.file.writer_lock import WriterLock
from adapters.lmdb.format.header import read_header
from application.ports.block_store import OpenFailure, StoreOpenError

FORMAT = 2
"""1 had smaller pieces, and did not sync each commit everywhere."""

DOCUMENTS_FOLDER = "documents"
"""In a store's folder: what is stored beside its blocks."""

_TITLE = b"cairn block store\nformat "

_FULL_BYTES = 1 << 20
# The last pages of a transaction may be free ones that were never written; more than this is a truncated file.
_UNWRITTEN_BYTES = 1 << 20
# LMDB maps its table of readers and writes to it: on a full volume a page that is not there would kill the process.
_READERS_BYTES = 20 << 10
_OF_SYSTEM = {"lost+found", ".DS_Store"}


class StoreDirectory:
    """Paths and checks only; nothing here keeps LMDB open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data.mdb"
        self.readers = path / "lock.mdb"
        self.copy = path / "data.compact"
        self.quota = path / "quota"
        self.notes = path / "notes"
        self._format = path / "format"
        self._lock = WriterLock(path / "writer.lock")
        self._of_earlier = tuple(path / name for name in ("boot", "synced", "rates.json", "data.damaged"))

    @property
    def _files(self) -> tuple[Path, ...]:
        return (
            self.data, self.readers, self.copy, self.quota, self.notes, self._format,
            self.path / "writer.lock", *self._of_earlier,
        )  # fmt: skip

    def prepare(self) -> None:
        """Create the folder if need be. Raises StoreOpenError for one of somebody else's, or with other content."""
        if kind := network_file_system(self.path):
            raise StoreOpenError(OpenFailure.VOLUME, f"{self.path} is on a network file system ({kind})")
        try:
            if not self.path.exists():
                make_folder(self.path)
            self._refuse_others()
            self._refuse_other_content()
        except OSError as failure:
            raise self._unwritable(failure) from None

    def claim(self) -> list[str]:
        """Create or recognise the directory and become its one writer. Raises StoreOpenError.

        Returns the names of what others could get at and cannot now: nothing, in a folder that was private.
        """
        self.prepare()
        try:
            was_open = close_to_others(self.path, FOLDER_MODE)
            self._lock.acquire()
            # Again: until now others may have been able to put something else in their place.
            self._refuse_others()
            opened = [file.name for file in self._files if file.exists() and close_to_others(file, FILE_MODE)]
            self._recognise_or_make()
            self._remove_leftovers()
        except OSError as failure:
            self.release()
            raise self._unwritable(failure) from None
        except StoreOpenError:
            self.release()
            raise
        return [self.path.name, *opened] if was_open else []

    def recognise(self) -> None:
        """Raises StoreOpenError unless the directory is a store of this format, and ours. Changes nothing."""
        try:
            if not self.path.is_dir():
                raise StoreOpenError(OpenFailure.VOLUME, f"there is no store in {self.path}")
            self._refuse_others()
            if (number := self._format_number()) is None:
                raise self._foreign()
            if number < FORMAT:
                message = f"{self.path} has format {number}, of an earlier version: start a server to empty and use it"
                raise StoreOpenError(OpenFailure.FOREIGN, message)
        except OSError as failure:
            raise StoreOpenError(OpenFailure.VOLUME, f"{self.path} cannot be read: {failure.strerror}") from None

    def release(self) -> None:
        self._lock.release()

    def is_written_elsewhere(self) -> bool:
        """Whether another process writes to the store now."""
        return self._lock.is_held_elsewhere()

    def inspect(self) -> None:
        """Raises Damaged when LMDB would fail on the file, or fault on memory that the file does not back."""
        if self._lock.is_held:
            self._reserve_readers()
        if not self.data.exists() or (found := read_header(self.data)) is None:
            return
        # Pages that the file does not back are fatal to touch, so a missing tail is filled with zeros below: where it
        # was in use after all, checks and LMDB's own tests of a page refuse it.
        header, size_bytes = found
        missing_bytes = header.file_bytes - size_bytes
        if missing_bytes > (_UNWRITTEN_BYTES if self._lock.is_held else 0):
            raise Damaged(f"the database has {size_bytes} bytes and needs {header.file_bytes}")
        if missing_bytes > 0:
            os.truncate(self.data, header.file_bytes)

    def sync(self) -> None:
        """Make the names of what was created or replaced durable."""
        sync_folder(self.path)

    def empty_unopened(self) -> None:
        """Remove all that was stored, whatever keeps it from being opened. Raises StoreOpenError."""
        self.claim()
        try:
            self.empty()
        except OSError as failure:
            raise self._unwritable(failure) from None
        finally:
            self.release()

    def empty(self) -> None:
        """Remove all that was stored. Never call it with the database open."""
        remove_durably(self.readers, self.data)

    def swap_in(self, copy: Path) -> None:
        """Make a synced copy the database, durably. Never call it with the database open."""
        copy.replace(self.data)
        # Readers of other processes keep the old pair of files; a new pair keeps their slots out of ours.
        self.readers.unlink(missing_ok=True)
        self.sync()

    @property
    def size_bytes(self) -> int:
        """Of the database file; 0 when there is none."""
        return _size(self.data)

    def is_volume_full(self) -> bool:
        try:
            return free_bytes(self.path) < _FULL_BYTES
        except OSError:
            return False

    def _refuse_others(self) -> None:
        refuse_folder_of_others(self.path)
        for file in self._files:
            refuse_file_of_others(file)

    def _refuse_other_content(self) -> None:
        """So that a wrong setting neither fills nor closes a folder that is used for something else."""
        ours = {file.name for file in self._files} | {f"{file.name}.new" for file in self._files}
        names = {entry.name for entry in os.scandir(self.path)} - ours - {DOCUMENTS_FOLDER} - _OF_SYSTEM
        if names and self._format_number() is None:
            raise self._foreign()

    def renew(self) -> int | None:
        """Empty a store of an earlier version and make it one of this. Returns its format; None when it is of this
        version. After `claim`. Raises OSError."""
        number = self._format_number()
        if number is None or number == FORMAT:
            return None
        remove_durably(self.readers, self.data, *self._of_earlier)
        self._mark()
        return number

    def _recognise_or_make(self) -> None:
        if self._format_number() is not None:
            return
        if _size(self.data):
            raise self._foreign()
        self._mark()

    def _mark(self) -> None:
        replace_durably(self._format, b"%s%d\n" % (_TITLE, FORMAT))

    def _format_number(self) -> int | None:
        """None: there is no `format`. Raises StoreOpenError when it is of something else or a later format."""
        try:
            text = read_private(self._format)
        except FileNotFoundError:
            return None
        number = text.removeprefix(_TITLE).strip()
        if not text.startswith(_TITLE) or not number.isdigit():
            raise self._foreign()
        if int(number) > FORMAT:
            message = f"{self.path} has format {number.decode()}; this version reads {FORMAT}"
            raise StoreOpenError(OpenFailure.NEWER, message)
        return int(number)

    def _remove_leftovers(self) -> None:
        """Of a process that was killed while it copied or wrote a file."""
        unfinished = (file.with_name(f"{file.name}.new") for file in self._files)
        remove_durably(self.copy, *unfinished)

    def _reserve_readers(self) -> None:
        if self.readers.exists() or not hasattr(os, "posix_fallocate"):
            return
        handle = open_private(self.readers, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(handle, 0, _READERS_BYTES)
        except OSError:
            self.readers.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)

    def _foreign(self) -> StoreOpenError:
        return StoreOpenError(
            OpenFailure.FOREIGN, f"{self.path} is not a store of Cairn's; name an empty folder or a store"
        )

    def _unwritable(self, failure: OSError) -> StoreOpenError:
        return StoreOpenError(OpenFailure.VOLUME, f"{self.path} cannot be written: {failure.strerror}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
