"""Read-ahead: pages of records that are about to be read, brought into memory several at a time.

A thread that reads the map stops at every page that is not in memory until the disk has delivered it, and then decodes
while the disk rests. Threads of their own, that only touch pages, keep the disk busy meanwhile. Touching pages that are
there already costs a hundredth of decoding them.
"""

from collections.abc import Sequence
from typing import Protocol

import lmdb

from adapters.lmdb.environment import ClosedError
from adapters.lmdb.faults import Damaged
from adapters.lmdb.reading import CorruptRecord
from adapters.lmdb.rows import Row
from application.services.lane import Lane
from domain.errors import ServerUnavailable
from domain.ids import GroupIndex
from domain.record import RecordKey

NUM_THREADS = 4


class PageToucher(Protocol):
    """The part of a Reader that matters here."""

    def touch(self, key: RecordKey, row: Row, wanted: frozenset[GroupIndex] | None) -> None: ...


class ReadAhead:
    """Any thread. What fails here is not reported: whoever reads the record meets it again."""

    def __init__(self, reader: PageToucher, num_threads: int = NUM_THREADS) -> None:
        self._reader = reader
        self._lane = Lane("read-ahead", num_threads)

    def start(self, requests: Sequence[tuple[RecordKey, Row | None, frozenset[GroupIndex] | None]]) -> None:
        """Begin to touch these records, in order. After `close`, nothing."""
        for key, row, wanted in requests:
            if row is None:
                continue
            try:
                self._lane.submit(self._touch, key, row, wanted)
            except ServerUnavailable:
                return

    def close(self) -> None:
        """Waits for what is under way only."""
        self._lane.close()
        self._lane.join()

    def _touch(self, key: RecordKey, row: Row, wanted: frozenset[GroupIndex] | None) -> None:
        try:
            self._reader.touch(key, row, wanted)
        except (lmdb.Error, OSError, Damaged, CorruptRecord, ClosedError):
            return


__all__ = ("NUM_THREADS", "PageToucher", "ReadAhead")
