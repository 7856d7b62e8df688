"""The documents service: no caller waits for a volume, pending writes are bounded, and dropped ones are counted."""

import asyncio
from collections.abc import Iterator, Sequence
from threading import Event

import pytest

from adapters.fake.environment import FakeClock
from adapters.sqlite.document_store import SqliteDocumentStore
from application.events import FaultObserved
from application.services import documents as service
from application.services.documents import Documents
from domain.errors import StoreUnresponsive
from domain.request.document import Document, DocumentKey
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.recording import RecordingEvents


class HangingDocuments(SqliteDocumentStore):
    """Hangs in `get` and `put` while `goes_on` is not set. `is_asked`: `get` was called."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(None, 0, RecordingEvents(), clock, memory_bytes=1 << 20)
        self.goes_on, self.is_asked = Event(), Event()
        self.goes_on.set()
        self.is_closed = False

    def put(self, documents: Sequence[Document]) -> bool:
        assert self.goes_on.wait(PATIENCE_S)
        return super().put(documents)

    def get(self, keys: Sequence[DocumentKey]) -> Sequence[Document | None]:
        self.is_asked.set()
        assert self.goes_on.wait(PATIENCE_S)
        return super().get(keys)

    def close(self) -> None:
        self.is_closed = True
        super().close()


class Bench:
    def __init__(self, timeout_s: float = PATIENCE_S) -> None:
        self.clock, self.events = FakeClock(), RecordingEvents()
        self.store = HangingDocuments(self.clock)
        self.num_opened = 0
        self.documents = Documents(self._open, self.events, self.clock, salt="own", timeout_s=timeout_s)

    def _open(self) -> HangingDocuments:
        self.num_opened += 1
        return self.store

    def key(self, name: str, salt: str = "") -> DocumentKey:
        return DocumentKey(self.documents.owner(salt), "response", name)

    def keep(self, name: str, body: bytes = b"x", salt: str = "") -> None:
        self.documents.keep({self.key(name, salt): body}, "demo", self.clock.now_ns())

    async def body(self, name: str, salt: str = "", timeout_s: float | None = None) -> bytes | None:
        (found,) = await self.documents.find([self.key(name, salt)], timeout_s)
        return None if found is None else found.body

    async def body_soon(self, name: str) -> bytes | None:
        """Once the store answers again."""
        while True:
            try:
                return await self.body(name)
            except StoreUnresponsive:
                await asyncio.sleep(0.005)

    def lost(self) -> list[str]:
        return [event.message for event in self.events.of(FaultObserved)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.store.goes_on.set()
    made.documents.close(PATIENCE_S)


def test_a_kept_document_is_found(bench: Bench) -> None:
    async def run() -> None:
        bench.keep("a", b"one")
        bench.keep("a", b"two", salt="alice")
        assert (await bench.body("a"), await bench.body("a", "alice"), await bench.body("b")) == (b"one", b"two", None)

    assert bench.num_opened == 0
    asyncio.run(run())
    assert bench.num_opened == 1
    bench.documents.close(PATIENCE_S)
    assert bench.store.is_closed
    assert bench.lost() == []


def test_erasing_by_salt_includes_the_server_s_salt(bench: Bench) -> None:
    async def run() -> None:
        bench.keep("a", b"one", salt="alice")
        bench.keep("a", b"two", salt="bob")
        assert (await bench.documents.erase(None, "alice")).num_documents == 1
        assert (await bench.body("a", "alice"), await bench.body("a", "bob")) == (None, b"two")
        assert (await bench.documents.erase(None, None)).num_documents == 1
        assert (await bench.documents.usage()).num_documents == 0

    asyncio.run(run())


def test_refused_documents_are_counted(bench: Bench) -> None:
    async def run() -> None:
        bench.keep("large", bytes(2 << 20))
        bench.keep("b")
        assert [await bench.body(name) for name in ("large", "b")] == [None, b"x"]

    asyncio.run(run())
    assert bench.lost() == ["a document is not stored: the store did not take it"]


def test_a_hung_store_is_a_refusal_at_once_after_the_first() -> None:
    bench = Bench()

    async def run() -> None:
        bench.keep("a")
        assert await bench.body("a") == b"x"
        bench.store.goes_on.clear()
        bench.store.is_asked.clear()
        with pytest.raises(StoreUnresponsive, match="has not answered"):
            await bench.body("a", timeout_s=0.05)
        while not bench.store.is_asked.is_set():  # by then, on a busy machine; what never began does not hang
            with pytest.raises(StoreUnresponsive):
                await bench.body("a", timeout_s=0.05)
        with pytest.raises(StoreUnresponsive, match="hangs"):
            await bench.body("a")
        bench.store.goes_on.set()
        assert await bench.body_soon("a") == b"x"

    asyncio.run(run())
    bench.documents.close(PATIENCE_S)


def test_pending_writes_are_bounded_in_number_and_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_PENDING_BYTES", 1000)

    async def run() -> None:
        bench.store.goes_on.clear()
        bench.keep("large", bytes(900))
        bench.keep("too much", bytes(200))
        for number in range(service.MAX_PENDING + 5):
            bench.keep(str(number))
        bench.store.goes_on.set()
        assert await bench.body_soon("large") == bytes(900)
        assert (await bench.body("too much"), await bench.body("0")) == (None, b"x")

    asyncio.run(run())
    assert len(bench.lost()) == 1 + 6


def test_one_read_is_bounded_in_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_FOUND_BYTES", 1000)

    async def run() -> None:
        keys = [bench.key(str(number)) for number in range(100)]
        for key in keys[:50]:
            bench.documents.keep({key: bytes(90)}, "demo", bench.clock.now_ns())
        found = await bench.documents.find([bench.key("absent"), *keys])
        assert [one is None for one in found] == [True] + [False] * 15  # 8 and 8: the first 7 are too few
        assert len(await bench.documents.find(keys[50:])) == 50

    asyncio.run(run())


def test_closing_leaves_a_hung_store_behind() -> None:
    bench = Bench()

    async def run() -> None:
        bench.store.goes_on.clear()
        bench.keep("a")

    asyncio.run(run())
    bench.documents.close(0.05)
    assert "hangs" in bench.lost()[0]
    bench.store.goes_on.set()
