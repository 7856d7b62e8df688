"""A block store that cannot be opened yet, because another process uses it or its volume failed. Opening is retried.

    absent ──usage(), and RETRY_S have passed since it was tried──► opened ──close──► closed
       └──────────────────────────close─────────────────────────────────────────────────┘

Until then it is empty and refuses every put; clearing everything removes its files. Only `usage`, which a server calls
every few seconds, tries to open it, so no lookup waits for an opening.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock

from application.events import StoreFault, StoreOpened
from application.ports.block_store import (
    Advance,
    BlockStore,
    CompactReport,
    EraseReport,
    IntegrityReport,
    NoteGone,
    PreparedPut,
    PutOutcome,
    StoreOpenError,
    StoreUsage,
    no_progress,
)
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import Namespace, NamespaceInfo, Record, RecordKey

RETRY_S, MAX_RETRY_S = 5.0, 60.0
"""Seconds until the second try, and at most between tries; each pause is twice the last."""

MAX_NAMESPACES = 4096
"""Namespaces remembered until the store can be opened; of more the oldest lose their names."""


class AwaitedStore:
    """A BlockStore, see the port. `opens` returns the opened store, or raises StoreOpenError; called in one thread at a
    time. `empties` removes everything that is stored without opening it, and raises StoreOpenError."""

    def __init__(
        self,
        opens: Callable[[], BlockStore],
        empties: Callable[[], None],
        failure: StoreOpenError,
        events: EventSink,
        clock: Clock,
    ) -> None:
        """`failure`: the reason for which the first attempt failed."""
        self._opens, self._empties = opens, empties
        self._store: BlockStore | None = None
        self._first_failure, self._failure = failure, failure.failure
        self._events = events
        self._clock = clock
        self._namespaces: OrderedDict[Namespace, NamespaceInfo] = OrderedDict()
        self._trying, self._lock = Lock(), Lock()  # retries only: the first attempt was made at the start
        self._note_gone: NoteGone = lambda _: None
        self._is_over = False
        self._began_ns = clock.now_ns()
        self._wait_s = RETRY_S
        self._next_ns = self._began_ns + int(RETRY_S * 1e9)

    def keys(self, namespace: Namespace) -> Sequence[RecordKey]:
        return self._store.keys(namespace) if self._store is not None else ()

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        return self._store.get(keys, groups) if self._store is not None else [None] * len(keys)

    def followers(self, namespace: Namespace, parent: BlockHash, limit: int) -> Sequence[IdRow]:
        return self._store.followers(namespace, parent, limit) if self._store is not None else ()

    def touch(self, keys: Sequence[RecordKey]) -> None:
        if self._store is not None:
            self._store.touch(keys)

    def put(self, records: Sequence[Record]) -> PutOutcome:
        return self._store.put(records) if self._store is not None else PutOutcome.UNAVAILABLE

    def prepare(self, records: Sequence[Record]) -> PreparedPut:
        return self._store.prepare(records) if self._store is not None else lambda: PutOutcome.UNAVAILABLE

    def delete(self, keys: Sequence[RecordKey]) -> int:
        return self._store.delete(keys) if self._store is not None else 0

    def flush(self) -> None:
        if self._store is not None:
            self._store.flush()

    def erase(self, includes: Callable[[NamespaceInfo], bool] | None = None) -> EraseReport:
        if self._store is not None:
            return self._store.erase(includes)
        if includes is not None:
            return EraseReport(0, 0, f"nothing was removed from the store: {self._first_failure}")
        try:
            self._empties()
        except StoreOpenError as failure:
            return EraseReport(0, 0, f"nothing was removed from the store: {failure}")
        return EraseReport(0, 0)

    def check_integrity(self, *, payloads: bool = False, advance: Advance = no_progress) -> IntegrityReport:
        if self._store is not None:
            return self._store.check_integrity(payloads=payloads, advance=advance)
        return IntegrityReport(0, (str(self._first_failure),))

    def compact(self, advance: Advance = no_progress) -> CompactReport:
        if self._store is None:
            raise self._first_failure
        return self._store.compact(advance)

    def watch(self, note_gone: NoteGone) -> None:
        with self._lock:
            self._note_gone = note_gone
            if self._store is not None:
                self._store.watch(note_gone)

    def open_namespace(self, info: NamespaceInfo) -> None:
        with self._lock:
            if self._store is not None:
                self._store.open_namespace(info)
            elif not self._is_over:
                self._namespaces.pop(info.namespace, None)
                self._namespaces[info.namespace] = info
                if len(self._namespaces) > MAX_NAMESPACES:
                    self._namespaces.popitem(last=False)

    def usage(self) -> StoreUsage:
        """Reports a quota of 0 while the store is absent."""
        if self._is_due() and self._trying.acquire(blocking=False):
            try:
                if self._is_due():  # no other thread has just tried
                    self._try()
            finally:
                self._trying.release()
        if self._store is not None:
            return self._store.usage()
        faults = {f"open_{self._first_failure.failure.value}": 1}
        return StoreUsage(quota_bytes=0, stored_bytes=0, namespaces=(), faults=faults)

    def close(self) -> None:
        with self._lock:
            self._is_over = True
            if self._store is not None:
                self._store.close()

    def _is_due(self) -> bool:
        return not self._is_over and self._clock.now_ns() >= self._next_ns

    def _try(self) -> None:
        try:
            store = self._opens()
        except StoreOpenError as failure:
            if failure.failure is not self._failure:
                self._failure = failure.failure
                self._events.emit(StoreFault(f"open_{failure.failure.value}", str(failure), self._clock.now_ns()))
            self._wait_s = min(2 * self._wait_s, MAX_RETRY_S)
            self._next_ns = self._clock.now_ns() + int(self._wait_s * 1e9)
            return
        with self._lock:
            is_wanted = not self._is_over
            if is_wanted:
                for info in self._namespaces.values():
                    store.open_namespace(info)
                self._namespaces.clear()
                store.watch(self._note_gone)
                self._store, self._is_over = store, True
        if not is_wanted:  # closed meanwhile
            store.close()
            return
        self._note_gone(None)
        now_ns = self._clock.now_ns()
        self._events.emit(StoreOpened(now_ns - self._began_ns, now_ns))
