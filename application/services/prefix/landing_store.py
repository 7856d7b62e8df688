"""A block store whose records arrive where restoring takes state from fastest, copied there by the thread that reads.

A payload that cannot be landed is given on as it was read: restoring it costs more, and is right all the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from application.events import FaultObserved
from application.ports.block_store import BlockStore
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.forwarding_store import ForwardingStore
from domain.ids import GroupIndex
from domain.payload import StatePayload
from domain.record import Record, RecordKey

Land = Callable[[StatePayload], StatePayload]
"""The same state in the compute backend's memory, or as it is where that is as good. Any thread."""


class LandingStore(ForwardingStore):
    """See the module docstring, and the port for the contract."""

    def __init__(self, store: BlockStore, land: Land, events: EventSink, clock: Clock) -> None:
        super().__init__(store)
        self._land = land
        self._events = events
        self._clock = clock

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        return [record and self._landed(record) for record in super().get(keys, groups)]

    def _landed(self, record: Record) -> Record:
        try:
            return replace(record, groups={index: self._land(payload) for index, payload in record.groups.items()})
        except Exception as error:  # out of device memory, most likely
            message = f"{type(error).__name__}: {error}"
            self._events.emit(FaultObserved("prefix.land", message, self._clock.now_ns()))
            return record


__all__ = ("Land", "LandingStore")
