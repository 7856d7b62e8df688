"""The folder of a store: its owner, its format, its files, and the lock of its one writer."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from time import sleep

from adapters.lmdb import faults
from adapters.lmdb.private_files import (
    FILE_MODE,
    FOLDER_MODE,
    close_to_others,
    free_bytes,
    make_folder,
    network_file_system,
    open_private,
    read_private,
    refuse_file_of_others,
    refuse_folder_of_others,
    remove_durably,
    replace_durably,
    sync_folder,
)
from application.ports.block_store import OpenFailure, StoreOpenError

FORMAT = 2
"""The version of the store's format. Version 1 had smaller pieces, and did not sync each commit everywhere."""

DOCUMENTS_FOLDER = "documents"
"""The folder of stored responses and tool calls in a store's folder."""

_TITLE = b"cairn block store\nformat "

_FULL_BYTES = 1 << 20
_FILES_OF_SYSTEM = {"lost+found", ".DS_Store", "CACHEDIR.TAG"}
_HOLDER_BYTES = 256
# A reader that looks for a writer holds the lock for an instant.
_LOCK_ATTEMPTS, _LOCK_WAIT_S = 5, 0.02


class StoreDirectory:
    """The paths of a store, and checks of them; nothing here opens LMDB. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data.mdb"
        self.readers = path / "lock.mdb"
        self.copy = path / "data.compact"
        self.quota = path / "quota"
        self.notes = path / "notes"
        self._format = path / "format"
        self._writer = path / "writer.lock"
        self._lock: int | None = None
        self._files = (self.data, self.readers, self.copy, self.quota, self.notes, self._format, self._writer)

    def prepare(self) -> None:
        """Creates the folder where it is absent. Raises StoreOpenError for one of another user or other content."""
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
        """Creates or recognises the store and becomes its one writer. Raises StoreOpenError.

        Returns the names of what other users could read and cannot now; none for a folder that was private.
        """
        self.prepare()
        try:
            was_open = close_to_others(self.path, FOLDER_MODE)
            self._acquire()
            # Again: until now others may have been able to put something else in their place.
            self._refuse_others()
            opened = [file.name for file in self._files if file.exists() and close_to_others(file, FILE_MODE)]
            if self._format_number() is None:
                if self.size_bytes:
                    raise self._foreign()
                self._write_format()
            # A process that was killed while it copied or wrote a file left these.
            remove_durably(self.copy, *(file.with_name(f"{file.name}.new") for file in self._files))
        except OSError as failure:
            self.release()
            raise self._unwritable(failure) from None
        except StoreOpenError:
            self.release()
            raise
        return [self.path.name, *opened] if was_open else []

    def recognise(self) -> None:
        """Raises StoreOpenError unless the folder is a store of this format and of this user. Changes nothing."""
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

    def renew(self) -> int | None:
        """Empties a store of an earlier version and makes it one of this version. Returns its format; None when it is
        of this version. After `claim`. Raises OSError."""
        number = self._format_number()
        if number is None or number == FORMAT:
            return None
        self.empty()
        self._write_format()
        return number

    @property
    def is_claimed(self) -> bool:
        """True while this process holds the writer's lock."""
        return self._lock is not None

    def release(self) -> None:
        """Gives up the writer's lock. Repeating it does nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_written_elsewhere(self) -> bool:
        """Returns whether another process writes to the store now; False as well when that cannot be known."""
        if self.is_claimed or refuse_file_of_others(self._writer) is None:
            return False
        try:
            handle = os.open(self._writer, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def sync(self) -> None:
        """Makes the names of what was created or replaced durable."""
        sync_folder(self.path)

    def empty(self) -> None:
        """Removes all stored records. Must not be called with the database open."""
        remove_durably(self.readers, self.data)

    def empty_unopened(self) -> None:
        """Removes all that was stored, also where the database cannot be opened. Raises StoreOpenError."""
        self.claim()
        try:
            self.empty()
        except OSError as failure:
            raise self._unwritable(failure) from None
        finally:
            self.release()

    def swap_in_copy(self) -> None:
        """Replaces the database by the synced copy, durably. Must not be called with the database open."""
        self.copy.replace(self.data)
        # Readers of other processes keep the old pair of files; a new pair keeps their slots out of ours.
        self.readers.unlink(missing_ok=True)
        self.sync()

    @property
    def size_bytes(self) -> int:
        """The size of the database file; 0 when there is none."""
        try:
            return self.data.stat().st_size
        except OSError:
            return 0

    def is_full(self, failure: Exception) -> bool:
        """Returns whether a failure means a full volume: LMDB calls a write that was cut short an I/O error."""
        kind = faults.classify(failure)
        try:
            return kind == faults.DISK_FULL or (kind == faults.IO_ERROR and free_bytes(self.path) < _FULL_BYTES)
        except OSError:
            return False

    def _refuse_others(self) -> None:
        refuse_folder_of_others(self.path)
        for file in self._files:
            refuse_file_of_others(file)

    def _refuse_other_content(self) -> None:
        """Raises StoreOpenError for a folder of another program: a wrong setting must neither fill nor close it."""
        ours = {file.name for file in self._files} | {f"{file.name}.new" for file in self._files}
        names = {entry.name for entry in os.scandir(self.path)} - ours - {DOCUMENTS_FOLDER} - _FILES_OF_SYSTEM
        if names and self._format_number() is None:
            raise self._foreign()

    def _write_format(self) -> None:
        replace_durably(self._format, b"%s%d\n" % (_TITLE, FORMAT))

    def _format_number(self) -> int | None:
        """Returns None without a `format` file. Raises StoreOpenError for another program's or a later format."""
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

    def _acquire(self) -> None:
        """Takes the writer's lock (flock, which also holds between containers). Raises StoreOpenError, OSError."""
        handle = open_private(self._writer, os.O_RDWR | os.O_CREAT)
        try:
            self._flock(handle)
            # In place and of one length, so that a full volume has nothing to find room for.
            with suppress(OSError):
                os.pwrite(handle, _whoami().encode()[:_HOLDER_BYTES].ljust(_HOLDER_BYTES), 0)
                os.ftruncate(handle, _HOLDER_BYTES)
        except BaseException:
            os.close(handle)
            raise
        self._lock = handle

    def _flock(self, handle: int) -> None:
        for attempt in range(_LOCK_ATTEMPTS):
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if attempt + 1 < _LOCK_ATTEMPTS:
                    sleep(_LOCK_WAIT_S)
        holder = " ".join(os.pread(handle, _HOLDER_BYTES, 0).decode(errors="replace").split()) or "unknown"
        message = f"{self.path} is being written by another process (pid {holder}); stop it, or read only"
        raise StoreOpenError(OpenFailure.BUSY, message)

    def _foreign(self) -> StoreOpenError:
        return StoreOpenError(
            OpenFailure.FOREIGN, f"{self.path} is not a store of Cairn's; name an empty folder or a store"
        )

    def _unwritable(self, failure: OSError) -> StoreOpenError:
        return StoreOpenError(OpenFailure.VOLUME, f"{self.path} cannot be written: {failure.strerror}")


def _whoami() -> str:
    """Returns process id, host and pid namespace: an id means something within one namespace only."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{os.getpid()} on {gethostname()} {namespace}\n"
