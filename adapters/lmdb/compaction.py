"""Compaction and erasure: live records are copied to a new file, which replaces the database.

The copy is made entry by entry, so that nothing of a deleted record is in it, nor one that the disk cannot read. It
needs free space for the live records. Without it the old file stays at its size: it grows no further, and eviction
keeps its records below the quota. To remove everything, an empty file replaces the old one, which is unlinked and not
overwritten: a disk puts overwritten bytes elsewhere. Readers of other processes keep it until they open the store
again.
"""

from collections.abc import Callable, Iterator, Sequence

import lmdb

from adapters.lmdb import faults
from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.entries import QUARANTINED, RecordEntry, piece_key
from adapters.lmdb.environment import TREES, Environment, Tree
from adapters.lmdb.faults import Damaged, FaultLog, classify
from adapters.lmdb.private_files import free_bytes
from adapters.lmdb.writer import Writer
from application.ports.block_store import (
    Advance,
    EraseReport,
    NamespaceUsage,
    OpenFailure,
    StoreOpenError,
    no_progress,
)

# The space that eviction may add to a full file before its pages can be reused.
_SPARE_BYTES = 64 << 20
# For file names, and for other programs that write at the same time.
_MARGIN_BYTES = 1 << 20
# A transaction of the copy: its large values are in memory until it is committed.
_COPY_BYTES = 32 << 20


class Compaction:
    """The rewriting of a database file. The caller keeps others from reopening the environment. Every method raises
    Damaged, lmdb.Error and OSError."""

    def __init__(self, directory: StoreDirectory, environment: Environment, writer: Writer, log: FaultLog) -> None:
        self._directory = directory
        self._environment = environment
        self._writer = writer
        self._log = log

    def compact(self, advance: Advance = no_progress) -> None:
        """Copies the live records, then swaps the files; the store is as before when that fails or is interrupted. The
        caller keeps other writers out. Raises StoreOpenError(VOLUME) when there is no room for the copy."""
        directory, environment = self._directory, self._environment
        live_bytes = environment.used_pages() * environment.geometry.page_bytes
        if free_bytes(directory.path) < live_bytes + _MARGIN_BYTES:
            raise self._no_room(f"{live_bytes + _MARGIN_BYTES} bytes")
        try:
            self._copy(2 * live_bytes + _SPARE_BYTES, advance)
        except BaseException as failure:
            directory.copy.unlink(missing_ok=True)
            if isinstance(failure, lmdb.Error | OSError) and directory.is_full(failure):
                raise self._no_room(str(failure)) from None
            raise
        self._replace(directory.swap_in_copy)

    def shrink(self, advance: Advance = no_progress, *, always: bool = True) -> None:
        """Evicts down to the quota; compacts when the file is larger than that, or `always`. Evicted records stay
        evicted. Raises StoreOpenError(VOLUME) without room for the copy."""
        environment = self._environment
        with environment.exclusive:
            environment.resize(_SPARE_BYTES)
            try:
                self._writer.shrink()
                if always or environment.info()[0] > self._writer.quota_bytes:
                    self.compact(advance)
            except (lmdb.Error, OSError) as failure:
                if self._directory.is_full(failure):
                    raise self._no_room(str(failure)) from None
                raise
            finally:
                environment.resize()

    def fit(self) -> None:
        """Gives space back after the quota was lowered, if the volume has room for the copy."""
        writer, environment = self._writer, self._environment
        if environment.used_pages() <= writer.limit_pages and environment.info()[0] <= writer.quota_bytes:
            return
        try:
            self.shrink(always=False)
        except (StoreOpenError, lmdb.Error, OSError) as failure:
            if not isinstance(failure, StoreOpenError) and classify(failure) == faults.DAMAGED:
                raise
            limit = f"the file stays above the quota of {writer.quota_bytes} bytes"
            self._log.note(faults.NO_ROOM, f"{failure}; {limit} until a start or compact has room")
            if not environment.is_open:
                environment.open()
            return
        if environment.info()[0] > writer.quota_bytes:
            message = f"{self._directory.path} does not fit its quota although all was evicted; starting empty"
            self._log.note(faults.NO_ROOM, message)
            self._replace(self._directory.empty)

    def erase(self, gone: Sequence[NamespaceUsage], *, is_everything: bool) -> EraseReport:
        """Removes namespaces for good."""
        num_bytes, problem = sum(space.stored_bytes for space in gone), ""
        with self._environment.exclusive:
            if is_everything:
                num_records = sum(space.num_blocks + space.num_snapshots for space in gone)
                self._replace(self._directory.empty)
            else:
                num_records = sum(self._writer.delete_namespace(space.info.namespace) for space in gone)
                try:
                    self.compact()
                except StoreOpenError as failure:
                    what = "the records are removed, but their bytes may be left in free pages of the file"
                    problem = f"{what}: {failure}"
        return EraseReport(num_records, num_bytes, problem)

    def _replace(self, replace: Callable[[], None]) -> None:
        self._environment.close()
        try:
            replace()
        finally:
            self._environment.open()

    def _copy(self, map_bytes: int, advance: Advance) -> None:
        """Writes the copy. No process opens it before it has its name: it needs no locks, and one sync at the end."""
        path, environment = self._directory.copy, self._environment
        path.unlink(missing_ok=True)
        copy = lmdb.open(
            str(path), subdir=False, map_size=map_bytes, max_dbs=len(TREES), mode=0o600, lock=False, sync=False,
            lib_version=0,
        )  # fmt: skip
        try:
            with environment.viewing() as txn:
                for name, tree in zip(TREES, environment.trees, strict=True):
                    target = copy.open_db(name.encode())
                    entries = _pieces(txn, environment, advance) if name == "dat" else _entries(txn, tree)
                    while True:
                        with copy.begin(write=True) as copying, copying.cursor(target) as cursor:
                            consumed, _ = cursor.putmulti(_portion(entries), append=True)
                        if not consumed:
                            break
            copy.sync(True)
        finally:
            copy.close()

    def _no_room(self, what: str) -> StoreOpenError:
        message = f"{self._directory.path} has no room for a copy of the live records ({what})"
        return StoreOpenError(OpenFailure.VOLUME, message)


def _entries(txn: "lmdb.Transaction[memoryview]", tree: Tree) -> Iterator[tuple[bytes, memoryview]]:
    """Yields a tree other than `dat`, without the marks of records whose pages are not copied."""
    with txn.cursor(tree) as cursor:
        for key, value in cursor:
            if not bytes(key).startswith(QUARANTINED):
                yield bytes(key), value


def _pieces(
    txn: "lmdb.Transaction[memoryview]", environment: Environment, advance: Advance
) -> Iterator[tuple[bytes, memoryview]]:
    """Yields the pieces of records that can be read: walking over `dat` would touch the others. Raises Damaged."""
    rows = (RecordEntry.unpack(bytes(key), bytes(value)) for key, value in txn.cursor(environment.trees.rec))
    for row_id, num_pieces, num_bytes in sorted((row.id, row.num_pieces, row.charged_bytes) for row in rows):
        with environment.notes.of(row_id):
            for piece in range(num_pieces + 1):
                key = piece_key(row_id, piece)
                value = txn.get(key, db=environment.trees.dat)
                if value is None:
                    raise Damaged("a piece of a record is missing")
                yield key, value
        advance(num_bytes)


def _portion(entries: Iterator[tuple[bytes, memoryview]]) -> Iterator[tuple[bytes, memoryview]]:
    """Yields as many entries as one transaction takes."""
    num_bytes = 0
    for key, value in entries:
        yield key, value
        num_bytes += value.nbytes
        if num_bytes >= _COPY_BYTES:
            break
