"""What every document store keeps to, on disk and in memory."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from adapters.fake.environment import FakeClock
from adapters.sqlite.document_store import SqliteDocumentStore
from application.ports.document_store import DocumentStore
from domain.prefix.fingerprint import NamespaceFilter
from domain.request.document import Document, DocumentKey, Owner
from tests.support.telemetry.recording import RecordingEvents

QUOTA_BYTES = 4 << 20
AGE_S = 3600

Opens = Callable[[], DocumentStore]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["disk", "memory"])
def opens(request: pytest.FixtureRequest, store_path: Path, clock: FakeClock) -> Opens:
    path = store_path / "documents.sqlite" if request.param == "disk" else None
    memory_bytes = QUOTA_BYTES if path is None else 1 << 20
    return lambda: SqliteDocumentStore(
        path, QUOTA_BYTES, RecordingEvents(), clock, max_age_s=AGE_S, memory_bytes=memory_bytes
    )


@pytest.fixture
def store(opens: Opens) -> Iterator[DocumentStore]:
    opened = opens()
    yield opened
    opened.close()


def key(name: str, tenant: str = "", key_name: str = "", kind: str = "response") -> DocumentKey:
    return DocumentKey(Owner.of("the server's", tenant, key_name), kind, name)


def noise(seed: int, num_bytes: int) -> bytes:
    return Random(seed).randbytes(num_bytes)


def document(key: DocumentKey, body: bytes, clock: FakeClock, model: str = "demo") -> Document:
    return Document(key, body, model, clock.unix_ns())


def test_a_fleeting_document_reaches_no_file(
    opens: Opens, store: DocumentStore, clock: FakeClock, store_path: Path
) -> None:
    secret = replace(document(key("a"), b"the launch code " * 8, clock), is_fleeting=True)
    assert store.put([secret, replace(secret, key=key("b"), is_fleeting=False)])
    assert store.usage().num_documents == 2
    assert store.get([key("a")]) == [replace(secret, is_fleeting=False)]
    in_files = b"".join(path.read_bytes() for path in store_path.glob("**/*") if path.is_file())
    assert b"launch code" not in in_files
    plain = replace(secret, body=b"known", is_fleeting=False)
    assert store.put([plain])
    assert store.get([key("a")]) == [plain]
    assert store.usage().num_documents == 2
    other = opens()
    assert other.get([key("b")]) == [None]
    other.close()


@pytest.mark.parametrize("num_bytes", [0, 1, 4000, 300_000, 1_200_000])
def test_a_document_is_found_unchanged(store: DocumentStore, clock: FakeClock, num_bytes: int) -> None:
    noisy = document(key("noise"), noise(1, num_bytes), clock)
    even = document(key("even"), b"\x00" * num_bytes, clock, "other")
    assert store.put([noisy, even])
    assert store.get([even.key, key("absent"), noisy.key]) == [even, None, noisy]
    assert store.usage().num_documents == 2


def test_a_second_put_replaces(store: DocumentStore, clock: FakeClock) -> None:
    assert store.put([document(key("a"), b"one", clock)])
    clock.advance(5)
    again = document(key("a"), b"two", clock, "other")
    assert store.put([again])
    assert store.get([key("a")]) == [again]
    assert store.usage().num_documents == 1


def test_a_document_of_another_owner_is_a_miss(store: DocumentStore, clock: FakeClock) -> None:
    keys = [key("a"), key("a", "alice"), key("a", key_name="bob"), key("a", "alice", "bob"), key("a", kind="call")]
    for index, one in enumerate(keys):
        assert store.get([one]) == [None]
        assert store.put([document(one, b"%d" % index, clock)])
    assert [found and found.body for found in store.get(keys)] == [b"%d" % index for index in range(len(keys))]
    assert store.delete([keys[0]])
    assert [found is None for found in store.get(keys)] == [True, False, False, False, False]


def test_parts_of_a_key_do_not_run_into_each_other() -> None:
    ids = [DocumentKey(Owner(*parts[:2]), *parts[2:]).id for parts in (("a", "b", "c", "d"), ("ab", "", "c", "d"))]
    assert len({*ids, DocumentKey(Owner("a", "b"), "cd", "").id}) == 3


def test_deleting(store: DocumentStore, clock: FakeClock) -> None:
    assert not store.delete([key("a")])
    assert store.put([document(key("a"), b"x", clock)])
    assert store.delete([key("a")])
    assert store.get([key("a")]) == [None]
    assert not store.delete([key("a")])


def test_the_oldest_make_room(store: DocumentStore, clock: FakeClock) -> None:
    keys = [key(str(number)) for number in range(60)]
    for number, one in enumerate(keys):
        assert store.put([document(one, noise(number, 200_000), clock)])
        assert store.usage().stored_bytes <= QUOTA_BYTES
    there = [found is not None for found in store.get(keys)]
    assert there == sorted(there)
    assert 5 < there.count(True) < 60
    assert store.usage().evicted == there.count(False)


def test_a_replaced_document_is_the_youngest(store: DocumentStore, clock: FakeClock) -> None:
    for number in range(4):
        assert store.put([document(key(str(number)), noise(number, 200_000), clock)])
    assert store.put([document(key("0"), b"again", clock)])
    number = 4
    while store.get([key("1")]) != [None]:
        assert store.put([document(key(str(number)), noise(number, 200_000), clock)])
        number += 1
    assert store.get([key("0")]) != [None]


def test_many_small_ones_stay_within_the_quota(store: DocumentStore, clock: FakeClock) -> None:
    for start in range(0, 6_000, 100):
        batch = [document(key(str(number)), noise(number, 700), clock) for number in range(start, start + 100)]
        assert store.put(batch)
        assert store.usage().stored_bytes <= QUOTA_BYTES
        assert all(store.get([one.key for one in batch]))


def test_a_batch_beyond_the_quota_is_refused_and_evicts_none(store: DocumentStore, clock: FakeClock) -> None:
    small = document(key("small"), b"x", clock)
    assert store.put([small])
    assert not store.put([document(key("large"), noise(1, QUOTA_BYTES + 1), clock), document(key("b"), b"", clock)])
    assert store.get([small.key, key("large"), key("b")]) == [small, None, None]


def test_an_expired_document_is_a_miss_and_removed(store: DocumentStore, clock: FakeClock) -> None:
    assert store.put([document(key("old"), b"x", clock), document(key("old too"), b"x", clock)])
    clock.advance(AGE_S - 1)
    assert store.get([key("old")]) != [None]
    assert store.put([document(key("young"), b"x", clock)])
    clock.advance(2)
    assert store.get([key("old")]) == [None]
    assert not store.delete([key("old")])
    assert store.put([document(key("new"), b"x", clock)])
    assert store.usage().num_documents == 2
    assert store.get([key("young")]) != [None]


def test_erasing_by_tenant_and_by_model(store: DocumentStore, clock: FakeClock) -> None:
    alice, bob = key("a", "alice", "some key"), key("a", "bob")
    assert store.put([document(alice, noise(1, 90_000), clock), document(bob, b"x", clock, "other")])
    report = store.erase(NamespaceFilter.of(None, "alice", "the server's"))
    assert (report.num_documents, report.problem) == (1, "")
    assert report.num_bytes > 0
    assert [found is None for found in store.get([alice, bob])] == [True, False]
    assert store.erase(NamespaceFilter("demo")).num_documents == 0
    assert store.erase(NamespaceFilter("other")).num_documents == 1
    assert store.usage().num_documents == 0


def test_erasing_everything(store: DocumentStore, clock: FakeClock) -> None:
    for number in range(5):
        assert store.put([document(key(str(number), str(number)), b"x", clock)])
    assert store.erase().num_documents == 5
    assert store.erase().num_documents == 0
    assert store.get([key("1", "1")]) == [None]
    assert store.put([document(key("a"), b"x", clock)])
    assert store.get([key("a")]) != [None]


@pytest.mark.parametrize(
    ("choice", "is_kept"),
    [
        (NamespaceFilter(), False),
        (NamespaceFilter("demo"), False),
        (NamespaceFilter.of("demo", "alice", "the server's"), False),
        (NamespaceFilter("other"), True),
        (NamespaceFilter.of(None, "bob", "the server's"), True),
    ],
    ids=["all", "model", "both", "other model", "other tenant"],
)
def test_a_document_whose_request_began_before_a_clear_that_covers_it_is_not_stored(
    store: DocumentStore, clock: FakeClock, choice: NamespaceFilter, is_kept: bool
) -> None:
    streamed = document(key("streamed", "alice"), b"x", clock)
    clock.advance(1)
    assert store.erase(choice).problem == ""
    clock.advance(1)
    asked_later = document(key("later", "alice"), b"y", clock)
    assert store.put([streamed, asked_later])
    assert store.get([streamed.key, asked_later.key]) == [streamed if is_kept else None, asked_later]
    clock.advance(60)
    assert store.put([streamed])
    assert store.get([streamed.key]) == [streamed if is_kept else None]


def test_after_closing_nothing_raises(store: DocumentStore, clock: FakeClock) -> None:
    assert store.put([document(key("a"), b"x", clock)])
    store.close()
    store.close()
    assert store.get([key("a")]) == [None]
    assert not store.put([document(key("b"), b"x", clock)])
    assert not store.delete([key("a")])
    assert store.erase().num_documents == 0
    assert store.usage().num_documents == 0


def test_random_operations_agree_with_a_dictionary(store: DocumentStore, clock: FakeClock) -> None:
    random, model = Random(7), dict[DocumentKey, Document]()
    for _ in range(400):
        one = key(str(random.randrange(20)), random.choice(["", "alice"]))
        if random.random() < 0.6:
            model[one] = document(one, noise(random.randrange(1000), random.randrange(5000)), clock)
            assert store.put([model[one]])
        else:
            assert store.delete([one]) == (model.pop(one, None) is not None)
        assert store.get([one]) == [model.get(one)]
    assert store.usage().num_documents == len(model)
