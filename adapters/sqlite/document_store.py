"""Documents in SQLite: on disk, and in memory those that must not or cannot be written."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import disk_usage
from threading import Lock
from typing import TypeVar

from adapters.sqlite.database import Database, NewerFormat
from application.events import StoreFault
from application.ports.clock import Clock
from application.ports.document_store import DocumentUsage, Erased
from application.ports.event_sink import EventSink
from domain.prefix.fingerprint import EVERYTHING, NamespaceFilter
from domain.request.document import Document, DocumentKey

T = TypeVar("T")

MEMORY_BYTES = 32 << 20
"""The limit on documents in memory."""

RETRY_S = 60.0
"""The pause before a database that could not be opened is tried again."""

_KINDS = {
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_FULL: "disk_full",
    sqlite3.SQLITE_NOTADB: "damaged",
    sqlite3.SQLITE_READONLY: "read_only",
    sqlite3.SQLITE_CANTOPEN: "volume_gone",
}


class LowSpace(Exception):
    """Writing would leave less free space on the volume than the reserve."""


class SqliteDocumentStore:
    """A DocumentStore. Opens nothing before its first use, and never raises: a damaged database is replaced by an empty
    one, and one that cannot be opened is tried again after `RETRY_S`; until then documents are kept in memory."""

    def __init__(
        self,
        path: Path | None,
        quota_bytes: int,
        events: EventSink,
        clock: Clock,
        *,
        max_age_s: int | None = None,
        free_reserve_bytes: int = 0,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """`path`: of the file; its folder holds nothing else. None: all is in memory. `quota_bytes`: on disk,
        `memory_bytes`: in memory. `free_reserve_bytes`: the space that writing leaves free on the volume."""
        self._path = path
        self._quota_bytes = 0 if path is None else quota_bytes
        self._memory_bytes = memory_bytes
        self._events = events
        self._clock = clock
        self._max_age_ns = None if max_age_s is None else max_age_s * 10**9
        self._free_reserve_bytes = free_reserve_bytes
        self._lock = Lock()
        self._memory = Database(None, memory_bytes, self._max_age_ns)
        self._disk: Database | None = None
        self._retry_at_ns = 0
        self._faults: Counter[str] = Counter()
        self._evicted = 0
        self._is_closed = False

    def put(self, documents: Sequence[Document]) -> bool:
        with self._lock:
            if self._is_closed:
                return False
            ids, now_ns = [one.key.id for one in documents], self._clock.unix_ns()
            is_fleeting = any(one.is_fleeting for one in documents)
            if not is_fleeting and self._on_disk(lambda disk: self._put(disk, documents, now_ns), False):
                self._memory.delete(ids, now_ns)
                return True
            if self._memory.put(documents, now_ns):
                self._on_disk(lambda disk: disk.delete(ids, now_ns), 0)
                return True
            return False

    def get(self, keys: Sequence[DocumentKey]) -> Sequence[Document | None]:
        with self._lock:
            if self._is_closed:
                return [None] * len(keys)
            now_ns = self._clock.unix_ns()
            found = self._memory.get(keys, now_ns, self._note_damaged)
            on_disk = iter(self._read([key for key, one in zip(keys, found, strict=True) if one is None], now_ns))
            return [next(on_disk) if one is None else one for one in found]

    def delete(self, keys: Sequence[DocumentKey]) -> int:
        with self._lock:
            if self._is_closed:
                return 0
            ids, now_ns = [key.id for key in keys], self._clock.unix_ns()
            return self._memory.delete(ids, now_ns) + self._on_disk(lambda disk: disk.delete(ids, now_ns), 0)

    def erase(self, choice: NamespaceFilter = EVERYTHING) -> Erased:
        with self._lock:
            if self._is_closed:
                return Erased(0, 0)
            now_ns = self._clock.unix_ns()
            gone = self._memory.erase(choice.model, choice.salt, now_ns)
            if self._path is None:
                return gone
            erased = self._on_disk(lambda disk: disk.erase(choice.model, choice.salt, now_ns), None)
            if erased is None and choice.is_everything:
                self._remove_files(self._path)
                erased = self._on_disk(lambda disk: disk.erase(None, None, now_ns), None)
            if erased is None:
                return Erased(gone.num_documents, gone.num_bytes, f"{self._path} cannot be written now; see its faults")
            return Erased(gone.num_documents + erased.num_documents, gone.num_bytes + erased.num_bytes, erased.problem)

    def usage(self) -> DocumentUsage:
        with self._lock:
            quota_bytes = self._quota_bytes + self._memory_bytes
            if self._is_closed:
                return DocumentUsage(quota_bytes, 0, 0, self._evicted, dict(self._faults))
            memory_bytes, num_in_memory = self._memory.total()
            disk_bytes, num_on_disk = self._on_disk(Database.total, (0, 0))
            evicted = self._evicted + self._memory.num_evicted + (self._disk.num_evicted if self._disk else 0)
            num = num_in_memory + num_on_disk
            return DocumentUsage(quota_bytes, memory_bytes + disk_bytes, num, evicted, dict(self._faults))

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._memory.close()
                self._leave()

    def _read(self, keys: Sequence[DocumentKey], now_ns: int) -> list[Document | None]:
        """Reads from disk; one by one if the joint read fails, so that a bad sector costs only the documents in it."""
        found = self._on_disk(lambda disk: disk.get(keys, now_ns, self._note_damaged), None) if keys else []
        if found is not None:
            return found
        if len(keys) == 1 or self._path is None or self._clock.now_ns() < self._retry_at_ns:
            return [None] * len(keys)
        return [one for key in keys for one in self._read([key], now_ns)]

    def _put(self, disk: Database, documents: Sequence[Document], now_ns: int) -> bool:
        if self._path is not None and disk_usage(self._path.parent).free < self._free_reserve_bytes:
            raise LowSpace(f"the volume of {self._path} is below its free reserve")
        return disk.put(documents, now_ns)

    def _on_disk(self, work: Callable[[Database], T], otherwise: T) -> T:
        """Returns the result of `work`; `otherwise` without a disk, and where it fails."""
        if self._path is None or self._clock.now_ns() < self._retry_at_ns:
            return otherwise
        try:
            return work(self._opened(self._path))
        except (sqlite3.Error, OSError, NewerFormat, LowSpace) as failure:
            self._failed(self._path, failure)
            return otherwise

    def _opened(self, path: Path) -> Database:
        if self._disk is not None and not self._disk.is_in_place:
            self._leave()
            self._note("volume_gone", f"{path} was removed or replaced; it is made anew")
        if self._disk is None:
            self._disk = Database(path, self._quota_bytes, self._max_age_ns)
        return self._disk

    def _failed(self, path: Path, failure: Exception) -> None:
        kind, was_open = _kind(failure), self._disk is not None
        self._note(kind, f"{path}: {failure}")
        if kind == "damaged":
            self._remove_files(path)
        elif not was_open:
            self._retry_at_ns = self._clock.now_ns() + int(RETRY_S * 1e9)
        elif kind not in ("busy", "disk_full", "low_space"):  # with these it can still be read
            self._leave()

    def _remove_files(self, path: Path) -> None:
        """Removes the database. Another process that has it open makes a new one at its next use."""
        self._leave()
        self._retry_at_ns = 0
        for suffix in ("", "-wal", "-shm"):
            file = path.with_name(path.name + suffix)
            try:
                file.unlink(missing_ok=True)
            except OSError as failure:
                self._note(_kind(failure), f"{file} cannot be removed: {failure}")

    def _leave(self) -> None:
        if self._disk is not None:
            self._evicted += self._disk.num_evicted
            disk, self._disk = self._disk, None
            try:
                disk.close()
            except sqlite3.Error as failure:
                self._note(_kind(failure), f"{self._path} was not closed in order: {failure}")

    def _note_damaged(self) -> None:
        self._note("checksum", f"{self._path}: a document does not verify, and is removed")

    def _note(self, kind: str, message: str) -> None:
        self._faults[kind] += 1
        if self._faults[kind] == 1:
            self._events.emit(StoreFault(kind, message, self._clock.now_ns()))


def _kind(failure: Exception) -> str:
    match failure:
        case LowSpace():
            return "low_space"
        case NewerFormat():
            return "newer"
        case PermissionError():
            return "read_only"
        case FileNotFoundError() | NotADirectoryError():
            return "volume_gone"
        case sqlite3.Error(sqlite_errorcode=code):
            return _KINDS.get(code & 0xFF, "io_error")
        case _:
            return "io_error"
