"""The names of a store's faults, each counted always and reported the first time (docs/store-format.md, faults)."""

import errno
from collections import Counter
from collections.abc import Mapping
from threading import Lock

import lmdb

from application.events import StoreFault
from application.ports.clock import Clock
from application.ports.event_sink import EventSink

CHECKSUM = "checksum"
DAMAGED = "damaged"
DISK_FULL = "disk_full"
IO_ERROR = "io_error"
MAP_FULL = "map_full"
LOW_SPACE = "low_space"
NO_ROOM = "no_room"
READ_ONLY = "read_only"
OLDER = "older"
UNREADABLE = "unreadable"
VOLUME_GONE = "volume_gone"
ENCODE = "encode"
DECODE = "decode"


class Damaged(Exception):
    """The index contradicts itself or cannot be read: no record of the file can be trusted."""


class FatalIndex(Damaged):
    """Touching the index has ended processes: the disk cannot read it, or LMDB cannot."""


class CorruptRecord(Exception):
    """A record's payload does not verify; the index is sound."""


_STRUCTURAL = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.BadDbiError,
    lmdb.BadTxnError,
    lmdb.BadValsizeError,
    lmdb.KeyExistsError,
    lmdb.CursorFullError,
    lmdb.PageFullError,
    lmdb.NotFoundError,
)
_BY_ERRNO = {
    errno.ENOSPC: DISK_FULL,
    errno.EDQUOT: DISK_FULL,
    errno.EFBIG: DISK_FULL,
    errno.EROFS: READ_ONLY,
    errno.EACCES: READ_ONLY,
    errno.EPERM: READ_ONLY,
    errno.ENOENT: VOLUME_GONE,
    errno.ENODEV: VOLUME_GONE,
    errno.ENXIO: VOLUME_GONE,
    errno.ESTALE: VOLUME_GONE,
}


def classify(failure: Exception) -> str:
    """Returns the name of a fault raised by LMDB, by the operating system or by reading the index."""
    if isinstance(failure, (Damaged, *_STRUCTURAL)):
        return DAMAGED
    if isinstance(failure, (lmdb.MapFullError, lmdb.TxnFullError)):
        return MAP_FULL
    code = failure.code if isinstance(failure, lmdb.Error) else getattr(failure, "errno", None)
    return _BY_ERRNO.get(code or 0, IO_ERROR)


class FaultLog:
    """The counts of one store's faults. Any thread."""

    def __init__(self, events: EventSink, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._lock = Lock()
        self._counts: Counter[str] = Counter()

    def note(self, kind: str, message: str) -> None:
        """Counts a fault; the first of a kind is emitted as an event."""
        with self._lock:
            self._counts[kind] += 1
            is_first = self._counts[kind] == 1
        if is_first:
            self._events.emit(StoreFault(kind, message, self._clock.now_ns()))

    def counts(self) -> Mapping[str, int]:
        """Returns the number of faults by name since the store was opened."""
        with self._lock:
            return dict(self._counts)
