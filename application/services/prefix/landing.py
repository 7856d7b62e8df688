"""Records that arrive where restoring takes state from fastest, brought there by the thread that reads them.

A payload that cannot be landed is given on as it was read: restoring it costs more, and is right all the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from application.events import FaultObserved
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.record_reader import Presence, RecordReader
from domain.ids import BlockHash, GroupIndex
from domain.payload import StatePayload
from domain.record import BlockKey, Namespace, Record, RecordKey, SnapshotKey
from domain.snapshot_place import SnapshotPlace

Land = Callable[[StatePayload], StatePayload]
"""The same state in the compute backend's memory, or as it is where that is as good. Any thread."""


class LandingReader:
    """A RecordReader around another one; see the port for the contract."""

    def __init__(self, reader: RecordReader, land: Land, events: EventSink, clock: Clock) -> None:
        self._reader = reader
        self._land = land
        self._events = events
        self._clock = clock

    def lookup(self, keys: Sequence[BlockKey]) -> Sequence[Presence]:
        return self._reader.lookup(keys)

    def find_snapshots(self, namespace: Namespace, places: Sequence[SnapshotPlace]) -> Sequence[Sequence[SnapshotKey]]:
        return self._reader.find_snapshots(namespace, places)

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        return [record and self._landed(record) for record in self._reader.get(keys, groups)]

    def touch(self, keys: Sequence[RecordKey]) -> None:
        self._reader.touch(keys)

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> Sequence[tuple[int, ...]]:
        return self._reader.followers(namespace, parent, limit)

    def _landed(self, record: Record) -> Record:
        try:
            return replace(record, groups={index: self._land(payload) for index, payload in record.groups.items()})
        except Exception as error:  # out of device memory, most likely
            message = f"{type(error).__name__}: {error}"
            self._events.emit(FaultObserved("prefix.land", message, self._clock.now_ns()))
            return record


__all__ = ("Land", "LandingReader")
