"""The persistent tier on LMDB: the BlockStore contract over one environment. docs/store-format.md describes the files,
`containment` the faults.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeAlias, TypeVar

import lmdb

from adapters.lmdb import faults
from adapters.lmdb.compaction import Compaction
from adapters.lmdb.containment import FAILURES, Containment
from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.entries import RecordEntry
from adapters.lmdb.environment import Environment
from adapters.lmdb.faults import CorruptRecord, FaultLog, classify
from adapters.lmdb.integrity import IntegrityCheck
from adapters.lmdb.payload import EncodedRecord, encode
from adapters.lmdb.private_files import free_bytes
from adapters.lmdb.probe import verify_payloads
from adapters.lmdb.reading import Reader
from adapters.lmdb.writer import MAX_QUOTA_BYTES, MIN_QUOTA_BYTES, AgeLimit, RecordUses, Writer
from application.events import RecordsEvicted
from application.ports.block_store import (
    Advance,
    CodecError,
    CompactReport,
    EraseReport,
    IntegrityReport,
    NoteGone,
    OpenFailure,
    PreparedPut,
    PutOutcome,
    StateCodec,
    StoreOpenError,
    StoreUsage,
    no_progress,
)
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.lane import Lane
from domain.errors import ServerUnavailable
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import Namespace, NamespaceInfo, Record, RecordKey, check_ids

P = ParamSpec("P")
T = TypeVar("T")

_Begun: TypeAlias = "dict[RecordKey, Future[EncodedRecord | None]]"
"""Records that are being encoded; None where that failed."""


@dataclass(frozen=True, slots=True)
class LmdbOptions:
    """Options of a store. `quota_bytes`: the limit on the size of its file. A file that is larger already shrinks as
    soon as the volume has room for a copy of the live records. `free_reserve_bytes`: the space that writing leaves free
    on the volume.

    `pause_s`: how long writes are refused after the volume failed. `num_threads`: for encoding, and as many for
    decoding. `max_age_s`: records that were not used for that long are evicted, step by step.
    """

    quota_bytes: int
    read_only: bool = False
    free_reserve_bytes: int = 0
    pause_s: float = 60.0
    num_threads: int = 2
    max_age_s: int | None = None


class LmdbBlockStore:
    """A BlockStore in a folder. Opens on construction; raises StoreOpenError. One writing process, any number of
    readers."""

    def __init__(self, path: Path, options: LmdbOptions, codec: StateCodec, events: EventSink, clock: Clock) -> None:
        if not options.read_only and not MIN_QUOTA_BYTES <= options.quota_bytes <= MAX_QUOTA_BYTES:
            limits = f"from {MIN_QUOTA_BYTES} to {MAX_QUOTA_BYTES} bytes"
            message = f"store.quota must be {limits}, not {options.quota_bytes}"
            raise StoreOpenError(OpenFailure.VOLUME, message)
        self._options = options
        self._codec = codec
        self._events = events
        self._clock = clock
        self._directory = StoreDirectory(path)
        self._faults = FaultLog(events, clock)
        map_bytes = 0 if options.read_only else options.quota_bytes
        self._environment = Environment(self._directory, map_bytes=map_bytes, read_only=options.read_only)
        self._reader = Reader(self._environment, codec)
        self._uses = RecordUses()
        self._writer = Writer(self._environment, options.quota_bytes, self._uses, self._note_evicted)
        self._ages = AgeLimit(self._writer, clock, options.max_age_s) if options.max_age_s else None
        self._compaction = Compaction(self._directory, self._environment, self._writer, self._faults)
        self._containment = Containment(
            self._directory,
            self._environment,
            self._writer,
            self._compaction,
            self._faults,
            clock,
            read_only=options.read_only,
            pause_s=options.pause_s,
        )
        self._read, self._write = self._containment.read, self._containment.write
        self._evicted = 0
        self._containment.open()
        # Two lanes, so that no prefix that is read waits behind records that are stored.
        self._decoding = Lane("store", options.num_threads)
        self._encoding = Lane("store-encode", options.num_threads)

    def keys(self, namespace: Namespace) -> Sequence[RecordKey]:
        check_ids(namespace)
        return self._read(lambda: self._reader.keys(namespace), [])

    def watch(self, note_gone: NoteGone) -> None:
        self._writer.note_gone = note_gone

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        wanted = groups if groups is not None else [None] * len(keys)
        nothing: list[RecordEntry | None] = [None] * len(keys)
        # A record that is deleted between finding and reading is a miss; eviction passes over those that are read.
        with self._uses.reading(keys):
            rows = zip(keys, self._read(lambda: self._reader.rows(keys), nothing), wanted, strict=True)
            return [_result(future) for future in [_submit(self._decoding, self._record, *one) for one in rows]]

    def touch(self, keys: Sequence[RecordKey]) -> None:
        self._uses.touch(keys)

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> Sequence[IdRow]:
        check_ids(namespace, parent)
        return self._read(lambda: self._reader.followers(namespace, parent, limit), [])

    def open_namespace(self, info: NamespaceInfo) -> None:
        self._uses.announce(info)

    def put(self, records: Sequence[Record]) -> PutOutcome:
        return self.prepare(records)()

    def prepare(self, records: Sequence[Record]) -> PreparedPut:
        """Encodes records that are absent now, on threads of the store:

        prepare(batch 1)   encode ████
        prepare(batch 2)          encode ████
        put                       batch 1 ███   batch 2 ███
        """
        if self._containment.is_disk_suspect:
            return lambda: PutOutcome.UNAVAILABLE
        begun: _Begun = self._write(lambda: {} if self._is_low() else self._begin(records), {})
        return lambda: self._write(lambda: self._put(records, begun), PutOutcome.UNAVAILABLE)

    def delete(self, keys: Sequence[RecordKey]) -> int:
        return self._write(lambda: sum(self._writer.delete(key) for key in keys), 0)

    def flush(self) -> None:
        self._write(self._flush, None)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        refused = EraseReport(0, 0, f"{self._directory.path} cannot be written to now: see the faults of the store")
        return self._write(lambda: self._erase(includes), refused)

    def usage(self) -> StoreUsage:
        nothing = StoreUsage(quota_bytes=self._options.quota_bytes, stored_bytes=0, namespaces=())
        return replace(self._read(self._usage, nothing), evicted=self._evicted, faults=self._faults.counts())

    def check_integrity(self, *, payloads: bool = False, advance: Advance = no_progress) -> IntegrityReport:
        quota_bytes = None if self._options.read_only else self._options.quota_bytes
        check = IntegrityCheck(self._environment, quota_bytes, advance, payloads=payloads)
        problems = () if self._containment.is_closed else (f"cannot be read: {self._containment.broken}",)
        return self._read(check.run, IntegrityReport(0, problems))

    def check_payloads(self, advance: Advance = no_progress) -> Sequence[str]:
        """Checks every payload in a separate process, which an unreadable page may kill; returns one line for each
        problem."""
        try:
            return verify_payloads(self._directory.path, advance)
        except FAILURES as failure:
            return [f"{self._directory.path}: {failure}"]

    def close(self) -> None:
        with self._containment.lock:
            if self._containment.is_closed:
                return
            self._write(self._writer.touch, None)
            self._containment.is_closed = True
        # Outside the lock: a worker may be waiting for it.
        for lane in (self._decoding, self._encoding):
            lane.close()
            lane.join()
        try:
            self._environment.close(sync=not self._options.read_only)
        except FAILURES as failure:
            self._faults.note(classify(failure), f"{self._directory.path} could not be synced: {failure}")
        self._environment.notes.close()
        self._directory.release()

    def compact(self, advance: Advance = no_progress) -> CompactReport:
        """Rewrites the file as the port says. Raises StoreOpenError also when the store is closed or read-only."""
        with self._containment.lock:
            if not self._containment.can_write:
                raise StoreOpenError(
                    OpenFailure.VOLUME, f"{self._directory.path} is closed or read-only: it cannot be compacted"
                )
            try:
                self._containment.repair()
                before_bytes = self._directory.size_bytes
                self._compaction.shrink(advance)
                self._environment.sync()
                return CompactReport(before_bytes, self._directory.size_bytes)
            except FAILURES as failure:
                self._containment.contain(failure)
                self._containment.note_replaced()
                message = f"{self._directory.path} cannot be compacted: {failure}"
                raise StoreOpenError(OpenFailure.VOLUME, message) from None

    def _is_low(self) -> bool:
        return free_bytes(self._directory.path) < self._options.free_reserve_bytes

    def _begin(self, records: Sequence[Record]) -> _Begun:
        """Starts encoding the records that are absent."""
        rows = self._reader.rows([record.key for record in records])
        absent = {record.key: record for record, row in zip(records, rows, strict=True) if row is None}
        return {key: _submit(self._encoding, self._encode, record) for key, record in absent.items()}

    def _encode(self, record: Record) -> EncodedRecord | None:
        try:
            return encode(record, self._codec)
        except Exception as failure:  # a payload may still lie on a device, which fails in its own ways
            self._faults.note(faults.ENCODE, f"{type(failure).__name__}: {failure}")
            return None

    def _put(self, records: Sequence[Record], begun: _Begun) -> PutOutcome:
        self._age()
        if self._is_low():
            self._faults.note(faults.LOW_SPACE, f"the volume of {self._directory.path} is below its free reserve")
            return PutOutcome.UNAVAILABLE
        ready = {key: _result(future) for key, future in begun.items()}
        with self._environment.exclusive:
            # Some may have been removed since they were found present.
            late = self._begin([record for record in records if record.key not in ready])
            ready |= {key: _result(future) for key, future in late.items()}
            encoded = {key: one for key, one in ready.items() if one is not None}
            if len(encoded) < len(ready):
                return PutOutcome.UNAVAILABLE
            try:
                return self._writer.put(records, encoded)
            except lmdb.MapFullError as failure:
                self._faults.note(faults.MAP_FULL, str(failure))
                return PutOutcome.FULL

    def _age(self) -> None:
        if self._ages is None or not self._ages.is_due:
            return
        self._writer.touch()
        try:
            self._ages.step()
        except lmdb.MapFullError as failure:  # it waits; a put makes room by itself
            self._faults.note(faults.MAP_FULL, str(failure))

    def _record(self, key: RecordKey, row: RecordEntry | None, wanted: frozenset[GroupIndex] | None) -> Record | None:
        if row is None:
            return None
        try:
            return self._read(lambda: self._reader.record(key, row, wanted), None)
        except (CorruptRecord, CodecError) as failure:
            self._faults.note(faults.CHECKSUM if isinstance(failure, CorruptRecord) else faults.DECODE, str(failure))
            self._write(lambda: self._writer.delete(key), 0)
            return None

    def _erase(self, includes: Callable[[NamespaceInfo], bool] | None) -> EraseReport:
        with self._containment.lock:
            gone = [space for space in self._usage().namespaces if includes is None or includes(space.info)]
            try:
                report = self._compaction.erase(gone, is_everything=includes is None)
                self._environment.sync()
                return report
            finally:
                self._containment.note_replaced()
                self._writer.note_gone(None)

    def _usage(self) -> StoreUsage:
        return self._reader.usage(None if self._options.read_only else self._options.quota_bytes)

    def _flush(self) -> None:
        self._writer.touch()
        self._age()
        self._environment.sync()

    def _note_evicted(self, num_records: int, reason: str) -> None:
        self._evicted += num_records
        self._events.emit(RecordsEvicted(num_records, self._clock.now_ns(), reason))


def _submit(lane: Lane, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
    """Starts work; returns a cancelled future when the lane was closed meanwhile."""
    try:
        return lane.submit(work, *args, **kwargs)
    except ServerUnavailable:
        future: Future[T] = Future()
        future.cancel()
        return future


def _result(future: "Future[T | None]") -> T | None:
    """Returns None for work that was cancelled, because the store was closed."""
    try:
        return future.result()
    except CancelledError:
        return None
