"""The documents of a server: their store is opened, read and written in a lane. The lane runs one call at a time, so
every later call finds a document that was kept, and no answer waits for the write. While the store hangs, reads are
refused, at once after the first, and documents to keep are dropped and counted.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from application.events import FaultObserved
from application.ports.clock import Clock
from application.ports.document_store import DocumentStore, DocumentUsage, Erased
from application.ports.event_sink import EventSink
from application.services.lane import Lane
from domain.errors import ServerUnavailable, StoreUnresponsive
from domain.prefix.fingerprint import NamespaceFilter
from domain.request.document import Document, DocumentKey, Owner

T = TypeVar("T")

MAX_PENDING = 64
MAX_PENDING_BYTES = 64 << 20
"""The limit on bodies that wait to be written."""

MAX_FOUND_BYTES = 16 << 20
"""The limit on bodies that one `find` returns."""

FOUND_AT_ONCE = 8

ERASE_TIMEOUT_S = 600.0
"""Erasing may copy what stays."""


class Documents:
    """The documents of a server. Event loop only, but for `close`. `opens` runs in the lane, at the first use; it never
    raises. `salt`: the server's own."""

    def __init__(
        self, opens: Callable[[], DocumentStore], events: EventSink, clock: Clock, *, salt: str, timeout_s: float
    ) -> None:
        self._opens = opens
        self._events = events
        self._clock = clock
        self._salt = salt
        self._timeout_s = timeout_s
        self._lane = Lane("documents", 1, max_pending=MAX_PENDING)
        self._opened: DocumentStore | None = None
        self._late: Future[Any] | None = None
        self._pending_bytes = 0

    def owner(self, requested_salt: str, key_name: str = "") -> Owner:
        """Returns the owner of a request's documents."""
        return Owner.of(self._salt, requested_salt, key_name)

    def keep(
        self, bodies: Mapping[DocumentKey, bytes], model: str, arrived_ns: int, *, is_fleeting: bool = False
    ) -> None:
        """Stores all or none; returns at once. `arrived_ns`: the arrival of their request by the monotonic clock: a
        clear that came later covers them. `is_fleeting`: in memory only."""
        num_bytes = sum(map(len, bodies.values()))
        if self._pending_bytes + num_bytes > MAX_PENDING_BYTES:
            return self._drop(f"{self._pending_bytes} bytes wait to be written already")
        began_ns = self._clock.unix_ns() - (self._clock.now_ns() - arrived_ns)
        documents = [Document(key, body, model, began_ns, is_fleeting) for key, body in bodies.items()]
        try:
            future = self._lane.submit(lambda: self._store().put(documents))
        except ServerUnavailable as error:
            return self._drop(error.message)
        self._pending_bytes += num_bytes
        loop = asyncio.get_running_loop()
        future.add_done_callback(partial(_call_soon, loop, partial(self._kept, num_bytes, future)))
        return None

    async def find(self, keys: Sequence[DocumentKey], timeout_s: float | None = None) -> Sequence[Document | None]:
        """Returns documents in the order of `keys`, None for a miss; it ends soon after MAX_FOUND_BYTES. Raises
        StoreUnresponsive while the store hangs."""
        return await self.ask(partial(_first_of, keys), timeout_s)

    async def ask(self, work: Callable[[DocumentStore], T], timeout_s: float | None = None) -> T:
        """Returns the result of `work`, run in the lane. Raises StoreUnresponsive."""
        if self._late is not None and not self._late.done():
            raise StoreUnresponsive("the documents' store hangs or is slow")
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            future = self._lane.submit(lambda: work(self._store()))
        except ServerUnavailable as error:
            raise StoreUnresponsive(error.message) from None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
        except TimeoutError:
            self._late = future
            self._note("documents.store", f"the documents' store has not answered within {timeout_s:g} s")
            raise StoreUnresponsive(f"the documents' store has not answered within {timeout_s:g} s") from None

    async def erase(self, model: str | None, salt: str | None) -> Erased:
        """Removes the documents of a model and a `cache_salt`, or of any (None), with any API key. Raises
        StoreUnresponsive."""
        choice = NamespaceFilter.of(model, salt, self._salt)
        return await self.ask(lambda store: store.erase(choice), ERASE_TIMEOUT_S)

    async def usage(self) -> DocumentUsage:
        """Returns the usage of the store. Raises StoreUnresponsive."""
        return await self.ask(lambda store: store.usage())

    def close(self, timeout_s: float) -> None:
        """Writes what waits and closes, within `timeout_s`; a store that hangs is left behind. Any thread; blocks."""
        try:
            closing = self._lane.submit(self._close)
        except ServerUnavailable:
            return
        is_late = bool(wait([closing], timeout_s).not_done)
        self._lane.close()
        if is_late:
            self._note("documents.store", "the documents' volume hangs: unfinished writes are left behind")

    def _store(self) -> DocumentStore:
        """Returns the store, opened at the first call; lane only."""
        if self._opened is None:
            self._opened = self._opens()
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _kept(self, num_bytes: int, future: "Future[bool]") -> None:
        self._pending_bytes -= num_bytes
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self._drop(f"{type(error).__name__}: {error}")
        elif not future.result():
            self._drop("the store did not take it")

    def _drop(self, why: str) -> None:
        self._note("documents.store", f"a document is not stored: {why}")

    def _note(self, where: str, message: str) -> None:
        self._events.emit(FaultObserved(where, message, self._clock.now_ns()))


def _first_of(keys: Sequence[DocumentKey], store: DocumentStore) -> list[Document | None]:
    found: list[Document | None] = []
    num_bytes = 0
    while len(found) < len(keys) and num_bytes < MAX_FOUND_BYTES:
        some = store.get(keys[len(found) : len(found) + FOUND_AT_ONCE])
        num_bytes += sum(len(one.body) for one in some if one is not None)
        found += some
    return found


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None], _future: "Future[bool]") -> None:
    """Runs `call` on the event loop, unless that is closed. Any thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
