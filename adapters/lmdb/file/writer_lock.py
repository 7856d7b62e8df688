"""The one writer of a store: a lock on a file (flock, which also holds between containers), and who holds it.

Process ids mean something within one pid namespace only, so the holder leaves its host name and namespace as well.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from time import sleep

from adapters.lmdb.file.private_files import open_private, refuse_file_of_others
from application.ports.block_store import OpenFailure, StoreOpenError

_HOLDER_BYTES = 256
# A reader that looks whether somebody writes holds the lock for an instant.
_ATTEMPTS, _WAIT_S = 5, 0.02


class WriterLock:
    """Not shared between threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    @property
    def is_held(self) -> bool:
        """By us."""
        return self._handle is not None

    def acquire(self) -> None:
        """Raises StoreOpenError, OSError."""
        handle = open_private(self._path, os.O_RDWR | os.O_CREAT)
        try:
            self._lock(handle)
            # In place and of one length, so that a full volume has nothing to find room for.
            with suppress(OSError):
                os.pwrite(handle, _whoami().encode()[:_HOLDER_BYTES].ljust(_HOLDER_BYTES), 0)
                os.ftruncate(handle, _HOLDER_BYTES)
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def is_held_elsewhere(self) -> bool:
        """Whether somebody writes to this store now; False as well when that cannot be known."""
        if self.is_held or refuse_file_of_others(self._path) is None:
            return False
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def _lock(self, handle: int) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if attempt + 1 < _ATTEMPTS:
                    sleep(_WAIT_S)
        holder = " ".join(os.pread(handle, _HOLDER_BYTES, 0).decode(errors="replace").split()) or "unknown"
        message = f"{self._path.parent} is being written by another process (pid {holder}); stop it, or read only"
        raise StoreOpenError(OpenFailure.BUSY, message)


def pid_namespace() -> str:
    """Names the pid namespace of this process; empty where there is none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _whoami() -> str:
    return f"{os.getpid()} on {gethostname()} {pid_namespace()}\n"
