"""The persistent tier on LMDB: the BlockStore contract over one environment. See docs/store-format.md for what is on
disk, and `containment` for what happens in trouble.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import lmdb

from adapters.lmdb import faults
from adapters.lmdb.care.compaction import erase, shrink
from adapters.lmdb.care.containment import FAILURES, Containment
from adapters.lmdb.care.integrity import IntegrityCheck
from adapters.lmdb.care.opening import open_for_reading, open_for_writing
from adapters.lmdb.care.probe import verify_payloads
from adapters.lmdb.faults import FaultLog, classify
from adapters.lmdb.file.directory import StoreDirectory
from adapters.lmdb.file.environment import Environment
from adapters.lmdb.file.volume import free_bytes
from adapters.lmdb.format.rows import Row
from adapters.lmdb.index.ages import AgeLimit
from adapters.lmdb.index.encoders import Begun, Encoders
from adapters.lmdb.index.reading import CorruptRecord, Reader
from adapters.lmdb.index.room import MAX_QUOTA_BYTES, MIN_QUOTA_BYTES
from adapters.lmdb.index.uses import AnnouncedNamespaces, RecordUses
from adapters.lmdb.index.writer import Batch, Writer
from application.events import RecordsEvicted
from application.ports.block_store import (
    Advance,
    CompactReport,
    EraseReport,
    IntegrityReport,
    NoteGone,
    OpenFailure,
    PreparedPut,
    PutOutcome,
    StoreOpenError,
    StoreUsage,
    nobody_looks,
)
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.state_codec import CodecError, StateCodec
from application.services.lane import Lane
from domain.errors import ServerUnavailable
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import Namespace, NamespaceInfo, Record, RecordKey, check_ids

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_PUT_ATTEMPTS = 4
_GET_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class LmdbOptions:
    """`quota_bytes`: the file never becomes larger. A file that is larger already becomes smaller as soon as the volume
    has room for a copy of what is live. `free_reserve_bytes`: what writing leaves free on the volume.

    `pause_s`: how long writes rest after the volume failed. `num_threads`: for encoding, and as many for decoding.
    `max_age_s`: what was not used for that long is evicted, by and by.
    """

    quota_bytes: int
    read_only: bool = False
    free_reserve_bytes: int = 0
    pause_s: float = 60.0
    num_threads: int = 2
    max_age_s: int | None = None


class LmdbBlockStore:
    """Opens on construction; raises StoreOpenError. One writing process a directory, any number of readers."""

    def __init__(
        self,
        path: Path,
        options: LmdbOptions,
        codec: StateCodec,
        events: EventSink,
        clock: Clock,
    ) -> None:
        if not options.read_only and not MIN_QUOTA_BYTES <= options.quota_bytes <= MAX_QUOTA_BYTES:
            size = "small" if options.quota_bytes < MIN_QUOTA_BYTES else "large"
            message = f"a quota of {options.quota_bytes} bytes is too {size} for a store"
            raise StoreOpenError(OpenFailure.VOLUME, message)
        self._options = options
        self._events = events
        self._clock = clock
        self._directory = StoreDirectory(path)
        self._faults = FaultLog(events, clock)
        self._environment = Environment(
            self._directory,
            map_bytes=0 if options.read_only else options.quota_bytes,
            read_only=options.read_only,
        )
        self._reader = Reader(self._environment, codec)
        self._uses = RecordUses()
        self._writer = Writer(self._environment, options.quota_bytes, self._uses.kept, self._note_evicted)
        self._ages = AgeLimit(self._environment, self._writer, clock, age) if (age := options.max_age_s) else None
        self._containment = Containment(
            self._directory,
            self._environment,
            self._faults,
            clock,
            reopen=self._open,
            read_only=options.read_only,
            pause_s=options.pause_s,
        )
        self._announced = AnnouncedNamespaces()
        self._evicted = 0
        self._open()
        self._lane = Lane("store", options.num_threads)
        self._encoders = Encoders(
            codec,
            lambda why: self._faults.note(faults.ENCODE, why),
            num_threads=options.num_threads,
        )

    def keys(self, namespace: Namespace) -> Sequence[RecordKey]:
        check_ids(namespace)
        return self._read(lambda: self._reader.keys(namespace), [])

    def watch(self, note_gone: NoteGone) -> None:
        self._writer.note_gone = note_gone

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        wanted = groups if groups is not None else [None] * len(keys)
        found: list[Record | None] = []
        with self._uses.reading(keys):
            for _ in range(_GET_ATTEMPTS):
                rows = self._rows(keys)
                requests = list(zip(keys, rows, wanted, strict=True))
                found = self._spread(self._get_one, requests)
                # Evicted between finding and reading: look again, so that the answer is that of one moment.
                gone = [row for row, record in zip(rows, found, strict=True) if row is not None and record is None]
                if not gone:
                    break
        return found

    def touch(self, keys: Sequence[RecordKey]) -> None:
        self._uses.touch(keys)

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> Sequence[IdRow]:
        check_ids(namespace, parent)
        return self._read(lambda: self._reader.followers(namespace, parent, limit), [])

    def open_namespace(self, info: NamespaceInfo) -> None:
        # Written with its first record, so that nobody who only announces one waits for a transaction.
        self._announced.note(info)

    def put(self, records: Sequence[Record]) -> PutOutcome:
        return self.prepare(records)()

    def prepare(self, records: Sequence[Record]) -> PreparedPut:
        begun = self._write(lambda: self._begin(records), None)
        return lambda: self._write(lambda: self._put(records, begun), PutOutcome.UNAVAILABLE)

    def delete(self, keys: Sequence[RecordKey]) -> int:
        return self._write(lambda: sum(self._writer.delete(key) for key in keys), 0)

    def flush(self) -> None:
        self._write(self._flush, None)

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        refused = EraseReport(0, 0, f"{self._directory.path} cannot be written to now; see its faults")
        return self._write(lambda: self._erase(includes), refused)

    def usage(self) -> StoreUsage:
        nothing = StoreUsage(quota_bytes=self._options.quota_bytes, stored_bytes=0, namespaces=())
        usage = self._read(self._usage, nothing)
        return replace(usage, evicted=self._evicted, faults=self._faults.counts())

    def check_integrity(self, *, payloads: bool = False, advance: Advance = nobody_looks) -> IntegrityReport:
        quota_bytes = None if self._options.read_only else self._options.quota_bytes
        check = IntegrityCheck(self._environment, quota_bytes, advance, payloads=payloads)
        problems = () if self._containment.is_closed else (f"cannot be read: {self._containment.broken}",)
        return self._read(check.run, IntegrityReport(0, problems))

    def check_payloads(self, advance: Advance = nobody_looks) -> Sequence[str]:
        """Check every payload in a process that may die of it; one line for each problem."""
        try:
            return verify_payloads(self._directory.path, advance)
        except FAILURES as failure:
            return [f"{self._directory.path}: {failure}"]

    def close(self) -> None:
        with self._containment.lock:
            if self._containment.is_closed:
                return
            self._write(self._flush_touches, None)
            self._containment.is_closed = True
        # Outside the lock: a worker may be waiting for it.
        self._lane.close()
        self._lane.join()
        self._encoders.close()
        try:
            self._environment.close(sync=not self._options.read_only)
        except FAILURES as failure:
            self._faults.note(classify(failure), f"{self._directory.path} could not be synced: {failure}")
        self._environment.notes.close()
        self._directory.release()

    def compact(self, advance: Advance = nobody_looks) -> CompactReport:
        """Raises StoreOpenError as well when the store is closed or read-only."""
        with self._containment.lock:
            if not self._containment.can_write:
                raise StoreOpenError(OpenFailure.VOLUME, f"{self._directory.path} cannot be compacted now")
            try:
                self._containment.repair()
                before_bytes = self._directory.size_bytes
                shrink(self._directory, self._environment, self._writer, always=True, advance=advance)
                self._environment.sync()
                return CompactReport(before_bytes, self._directory.size_bytes)
            except FAILURES as failure:
                self._containment.contain(failure)
                self._containment.note_lost()
                message = f"{self._directory.path} cannot be compacted: {failure}"
                raise StoreOpenError(OpenFailure.VOLUME, message) from None

    def _open(self) -> None:
        if self._options.read_only:
            open_for_reading(self._directory, self._environment)
            return
        self._writer.forget_names()
        open_for_writing(self._directory, self._environment, self._writer, self._faults)
        self._writer.note_gone(None)

    def _age(self) -> None:
        if self._ages is None or not self._ages.is_due:
            return
        self._flush_touches()
        try:
            self._ages.step()
        except lmdb.MapFullError as failure:  # it waits; a put makes room by itself
            self._faults.note(faults.MAP_FULL, str(failure))

    def _begin(self, records: Sequence[Record]) -> Begun | None:
        """None when there is no room on the volume for what it would be for."""
        if self._is_low():
            return None
        keys = [record.key for record in records]
        present = {key for key, row in zip(keys, self._reader.rows(keys), strict=True) if row is not None}
        absent = list({record.key: record for record in records if record.key not in present}.values())
        return self._encoders.begin(absent)

    def _is_low(self) -> bool:
        return free_bytes(self._directory.path) < self._options.free_reserve_bytes

    def _put(self, records: Sequence[Record], begun: Begun | None) -> PutOutcome:
        self._age()
        if self._is_low():
            self._faults.note(faults.LOW_SPACE, f"the volume of {self._directory.path} is below its free reserve")
            return PutOutcome.UNAVAILABLE
        for _ in range(_PUT_ATTEMPTS):
            begun = begun or self._begin(records)
            outcome = self._put_once(records, begun) if begun is not None else PutOutcome.UNAVAILABLE
            if outcome is not None:
                return outcome
            begun = None
        return PutOutcome.UNAVAILABLE

    def _put_once(self, records: Sequence[Record], begun: Begun) -> PutOutcome | None:
        """None: what was present when it was begun has gone since."""
        encoded = self._encoders.finish(begun)
        if encoded is None:
            return PutOutcome.UNAVAILABLE
        infos = self._announced.of({record.key.namespace for record in records})
        batch = Batch(records, {one.record.key: one for one in encoded}, infos, self._uses.take_touched())
        try:
            return self._writer.put(batch)
        except lmdb.MapFullError as failure:
            self._faults.note(faults.MAP_FULL, str(failure))
            return PutOutcome.FULL

    def _get_one(self, request: tuple[RecordKey, Row | None, frozenset[GroupIndex] | None]) -> Record | None:
        key, row, wanted = request
        if row is None:
            return None
        try:
            return self._read(lambda: self._reader.record(key, row, wanted), None)
        except CorruptRecord as failure:
            self._quarantine(key, faults.CHECKSUM, str(failure))
        except CodecError as failure:
            self._quarantine(key, faults.DECODE, str(failure))
        return None

    def _quarantine(self, key: RecordKey, kind: str, message: str) -> None:
        self._faults.note(kind, message)
        self._write(lambda: self._writer.delete(key), 0)

    def _spread(self, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        if len(items) < 2:
            return [work(item) for item in items]
        try:
            return [future.result() for future in [self._lane.submit(work, item) for item in items]]
        except (ServerUnavailable, CancelledError):  # closed in between
            return [work(item) for item in items]

    def _rows(self, keys: Sequence[RecordKey]) -> list[Row | None]:
        nothing: list[Row | None] = [None] * len(keys)
        return self._read(lambda: self._reader.rows(keys), nothing)

    def _erase(self, includes: Callable[[NamespaceInfo], bool] | None) -> EraseReport:
        with self._containment.lock:
            gone = [space for space in self._usage().namespaces if includes is None or includes(space.info)]
            try:
                report = erase(self._directory, self._environment, self._writer, gone, is_everything=includes is None)
                self._environment.sync()
                return report
            finally:
                self._containment.note_lost()
                self._writer.note_gone(None)

    def _usage(self) -> StoreUsage:
        return self._reader.usage(None if self._options.read_only else self._options.quota_bytes)

    def _flush(self) -> None:
        self._flush_touches()
        self._age()
        self._environment.sync()

    def _flush_touches(self) -> None:
        self._writer.touch(self._uses.take_touched())

    def _note_evicted(self, num_records: int, reason: str) -> None:
        if num_records:
            self._evicted += num_records
            self._events.emit(RecordsEvicted(num_records, self._clock.now_ns(), reason))

    def _read(self, work: Callable[[], _Result], otherwise: _Result) -> _Result:
        return self._containment.read(work, otherwise)

    def _write(self, work: Callable[[], _Result], otherwise: _Result) -> _Result:
        return self._containment.write(work, otherwise)
