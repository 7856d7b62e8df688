"""One SQLite database of documents, in a file or in memory. Failures of SQLite and of the volume reach the caller.

    document   a row each, in the order of puts (`place`)       total   of all rows: bytes and number, kept by triggers
    clearing   what was cleared when: documents of requests that began before are refused

A file is in WAL mode, so two processes may have it open; each commit is synced. Deleted bytes are overwritten.
"""

import os
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias
from zlib import crc32

from application.ports.document_store import Erased
from domain.request.document import Document, DocumentId, DocumentKey

FORMAT = 1
OVERHEAD_BYTES = 512
"""The charge for a document beside its body: row, index and half-filled pages."""

BUSY_TIMEOUT_S = 10.0
"""The limit on a call's wait for another process that writes."""

CLEARING_KEPT_NS = 7 * 86_400 * 10**9
"""The time for which clearings are remembered: longer than any request lasts."""

_SCHEMA = """
CREATE TABLE document(place INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL, model TEXT NOT NULL,
  began_ns INTEGER NOT NULL, size INTEGER NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE clearing(at_ns INTEGER NOT NULL, model TEXT, tenant TEXT);
CREATE TABLE total(num INTEGER NOT NULL, size INTEGER NOT NULL);
INSERT INTO total VALUES(0, 0);
CREATE TRIGGER added AFTER INSERT ON document
  BEGIN UPDATE total SET num = num + 1, size = size + new.size; END;
CREATE TRIGGER removed AFTER DELETE ON document
  BEGIN UPDATE total SET num = num - 1, size = size - old.size; END;
"""
_CHOSEN = "(:model IS NULL OR model = :model) AND (:tenant IS NULL OR tenant = :tenant)"
_COVERED = (
    "SELECT 1 FROM clearing WHERE at_ns > :began AND at_ns <= :now"
    " AND (model IS NULL OR model = :model) AND (tenant IS NULL OR tenant = :tenant)"
)


_Row: TypeAlias = tuple[bytes, str, int, int]
"""Body, model, began_ns, checksum."""


class NewerFormat(Exception):
    """The file was written by a later version of Cairn."""


class Database:
    """The documents of one database. Opens on construction; every call raises sqlite3.Error and OSError. One thread at
    a time."""

    def __init__(self, path: Path | None, quota_bytes: int, max_age_ns: int | None) -> None:
        """`path` None: in memory. `quota_bytes`: of bodies, each with `OVERHEAD_BYTES`. Raises NewerFormat, too."""
        self._quota_bytes = quota_bytes
        self._max_age_ns = max_age_ns
        self.num_evicted = 0
        if path is not None:
            _make_private(path)
        self._sql = sqlite3.connect(
            ":memory:" if path is None else path,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._prepare()
        except BaseException:
            self._sql.close()
            raise
        self._file = None if path is None else (path, _inode(path))

    @property
    def is_in_place(self) -> bool:
        """False when the file was deleted or replaced: writes are lost with this process."""
        return self._file is None or _inode(self._file[0]) == self._file[1]

    def put(self, documents: Sequence[Document], now_ns: int) -> bool:
        """Stores documents. Returns False when they exceed the quota, and evicts none then."""
        rows = {one.key.id: one for one in documents}
        if sum(map(_size, rows.values())) > self._quota_bytes:
            return False
        with self._transaction():
            for id, one in rows.items():
                self._remove(id)
                if not self._is_covered(one, now_ns):
                    row = (id, one.key.owner.tenant, one.model, one.began_ns, _size(one), _checksum(id, one.body))
                    self._sql.execute("INSERT INTO document VALUES(NULL, ?, ?, ?, ?, ?, ?, ?)", (*row, one.body))
            self._evict(now_ns)
        return True

    def get(self, keys: Sequence[DocumentKey], now_ns: int, note_damaged: Callable[[], None]) -> list[Document | None]:
        """Returns documents in the order of `keys`, as of one moment; None for a miss. A document that does not verify
        is removed, and `note_damaged` called."""
        query = "SELECT body, model, began_ns, checksum FROM document WHERE id = ?"
        found: list[Document | None] = []
        damaged: list[DocumentId] = []
        with self._transaction("BEGIN"):
            for key in keys:
                id = key.id
                row: _Row | None = self._sql.execute(query, (id,)).fetchone()
                found.append(None)
                if row is None or self._is_expired(row[2], now_ns):
                    continue
                if _checksum(id, row[0]) == row[3]:
                    found[-1] = Document(key, *row[:3])
                else:
                    damaged.append(id)
        for id in damaged:
            self.delete([id], now_ns)
            note_damaged()
        return found

    def delete(self, ids: Sequence[DocumentId], now_ns: int) -> int:
        """Removes documents; returns the number that could still be read."""
        with self._transaction():
            began = [time for id in ids for time in self._remove(id)]
        return sum(not self._is_expired(time, now_ns) for time in began)

    def erase(self, model: str | None, tenant: str | None, now_ns: int) -> Erased:
        """Removes documents of a model and a tenant; None is any. `problem`: another process reads an old state, which
        stays in a file until it is done."""
        chosen = {"model": model, "tenant": tenant}
        before_bytes, before = self.total()
        with self._transaction():
            self._sql.execute("DELETE FROM clearing WHERE at_ns < ?", (now_ns - CLEARING_KEPT_NS,))
            self._sql.execute("INSERT INTO clearing VALUES(?, ?, ?)", (now_ns, model, tenant))
            self._sql.execute(f"DELETE FROM document WHERE {_CHOSEN}", chosen)
        after_bytes, after = self.total()
        if not after:
            self._sql.execute("VACUUM")
        is_busy, *_ = self._sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        problem = "another process reads the documents: what was removed is in their log until it is done"
        return Erased(before - after, before_bytes - after_bytes, problem if is_busy else "")

    def total(self) -> tuple[int, int]:
        """Returns the bytes that count against the quota, and the number of documents."""
        num_bytes, num = self._sql.execute("SELECT size, num FROM total").fetchone()
        return num_bytes, num

    def close(self) -> None:
        self._sql.close()

    def _prepare(self) -> None:
        for pragma in (
            "journal_mode = WAL",
            "journal_size_limit = 4194304",
            "synchronous = FULL",
            "fullfsync = ON",  # macOS: fsync alone leaves it in the disk's cache
            "checkpoint_fullfsync = ON",
            "secure_delete = ON",
        ):
            self._sql.execute(f"PRAGMA {pragma}").close()
        with self._transaction():
            (format,) = self._sql.execute("PRAGMA user_version").fetchone()
            if format > FORMAT:
                raise NewerFormat(f"the documents have format {format}; this version reads {FORMAT}")
            if not format:
                for statement in _SCHEMA.split(";\n"):
                    self._sql.execute(statement)
                self._sql.execute(f"PRAGMA user_version = {FORMAT}")

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Generator[None]:
        """Runs one immediate transaction: no other process writes during it."""
        self._sql.execute(begin)
        try:
            yield
            self._sql.execute("COMMIT")
        except BaseException:
            if self._sql.in_transaction:  # some failures end it
                self._sql.execute("ROLLBACK")
            raise

    def _remove(self, id: DocumentId) -> list[int]:
        """Removes a document and returns its `began_ns`, if it was present."""
        return [time for (time,) in self._sql.execute("DELETE FROM document WHERE id = ? RETURNING began_ns", (id,))]

    def _evict(self, now_ns: int) -> None:
        """Removes the oldest until the rest fits and the oldest is not expired."""
        with closing(self._sql.cursor()) as cursor:
            while row := cursor.execute("SELECT place, began_ns FROM document ORDER BY place LIMIT 1").fetchone():
                if self.total()[0] <= self._quota_bytes and not self._is_expired(row[1], now_ns):
                    return
                cursor.execute("DELETE FROM document WHERE place = ?", row[:1])
                self.num_evicted += 1

    def _is_covered(self, one: Document, now_ns: int) -> bool:
        """Returns whether a clearing covers the document's request. A clearing in the future was written by a clock
        that ran ahead."""
        found = {"began": one.began_ns, "now": now_ns, "model": one.model, "tenant": one.key.owner.tenant}
        return self._sql.execute(_COVERED, found).fetchone() is not None

    def _is_expired(self, began_ns: int, now_ns: int) -> bool:
        return self._max_age_ns is not None and began_ns + self._max_age_ns <= now_ns


def _size(one: Document) -> int:
    return OVERHEAD_BYTES + len(one.body)


def _checksum(id: DocumentId, body: bytes) -> int:
    """Covers the id, so that a body does not verify in another document's place."""
    return crc32(body, crc32(id))


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make_private(path: Path) -> None:
    """Makes folder and file private; SQLite gives its other files the mode of the first. By path: closing a descriptor
    of the file would release SQLite's locks. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.path.lexists(path):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    for one, mode in ((path.parent, 0o700), (path, 0o600)):
        found = one.lstat()
        if one.is_symlink() or found.st_uid != os.geteuid():
            raise PermissionError(f"{one} is a link, or belongs to another user (uid {found.st_uid}): remove it")
        if found.st_mode & 0o077:
            one.chmod(mode)
