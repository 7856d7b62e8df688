"""The way to the store, advanced by the test instead of by a thread."""

from collections.abc import Collection, Sequence
from contextlib import ExitStack

from adapters.fake.environment import FakeClock
from application.ports.block_store import BlockStore, PutOutcome
from application.services.prefix.offer import Offer
from application.services.prefix.write_behind import WriteBehind
from domain.ids import NO_REQUEST, RequestId
from domain.prefix.index import STORED
from domain.prefix.record import NamespaceInfo, Record, RecordKey
from tests.support.telemetry.recording import RecordingEvents

_ALL = 1 << 62


class SteppedWriter(WriteBehind):
    """Does in three steps what the thread does: take offers, put one, settle it."""

    def __init__(self, store: BlockStore, max_bytes: int = _ALL) -> None:
        super().__init__(store, RecordingEvents(), FakeClock(), max_bytes=max_bytes)
        self._taken: list[Offer] = []
        self._outcome: PutOutcome | None = None
        self._put_end = ExitStack()
        self._gone: Collection[RecordKey] = ()

    def step(self) -> bool:
        """The next of the three; False when nothing is left to do."""
        if not self._taken:
            self._taken = self._take(1) or []
            return bool(self._taken)
        offer = self._taken[0]
        if self._outcome is None:
            self.store.open_namespace(offer.info)
            self._gone = self._put_end.enter_context(self._indexes.removals())
            self._outcome = self.store.put(offer.records)
            return True
        reason = None if self._outcome is PutOutcome.STORED else self._outcome.value
        self._settle(offer, reason, self._gone)
        self._put_end.close()
        self._taken, self._outcome = self._taken[1:], None
        return True

    def pump(self, num_steps: int = 1 << 30) -> None:
        """Up to so many steps."""
        for _ in range(num_steps):
            if not self.step():
                break

    def _start(self) -> None:
        """No thread."""

    def _await_written(self, keys: Sequence[RecordKey]) -> None:
        while self._is_writing(keys):
            self.step()


class DirectWriter(SteppedWriter):
    """Stores at once. `outcomes`: of all offers."""

    def __init__(self, store: BlockStore) -> None:
        super().__init__(store)
        self.outcomes: list[PutOutcome] = []

    def offer(self, info: NamespaceInfo, records: Sequence[Record], id: RequestId = NO_REQUEST) -> bool:
        self.store.open_namespace(info)
        self.outcomes.append(self.store.put(records))
        if self.outcomes[-1] is PutOutcome.STORED:
            self._indexes.add([record.key for record in records], STORED)
        return True
