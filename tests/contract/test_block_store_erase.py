"""The BlockStore contract on removing for good, over every adapter; what is left in files is LMDB's affair."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from application.ports.block_store import BlockStore, PutOutcome
from domain.prefix.fingerprint import NamespaceChoice
from domain.prefix.record import NamespaceInfo
from tests.contract.test_block_store import ADAPTERS, present, put
from tests.support.stores.store_records import chain, keys_of, namespace_of, snapshot

ONE, TWO = namespace_of("one"), namespace_of("two?salt=alice")


@pytest.fixture(params=ADAPTERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockStore]:
    store = ADAPTERS[request.param](tmp_path / "store")
    store.open_namespace(ONE)
    store.open_namespace(TWO)
    yield store
    problems, faults = store.check_integrity(payloads=True).problems, set(store.usage().faults)
    store.close()
    assert problems == ()
    assert faults <= {"injected"}


def is_two(info: NamespaceInfo) -> bool:
    return info == TWO


def test_a_part_goes_and_the_rest_stays(store: BlockStore) -> None:
    mine, theirs = chain(ONE, 3), chain(TWO, 3)
    hanging = [snapshot(theirs[1], [1]), snapshot(TWO, [2])]
    for records in (mine, [*theirs, *hanging]):
        assert put(store, records) is PutOutcome.STORED
    report = store.erase(is_two)
    assert (report.num_records, report.problem) == (5, "")
    assert report.num_bytes > 0
    assert present(store, [*mine, *theirs]) == [True] * 3 + [False] * 3
    assert put(store, theirs) is PutOutcome.STORED
    assert present(store, theirs) == [True] * 3


def test_everything_goes_and_the_store_goes_on(store: BlockStore) -> None:
    mine, theirs = chain(ONE, 3, size_bytes=50_000), chain(TWO, 2)
    for records in (mine, theirs):
        assert put(store, records) is PutOutcome.STORED
    report = store.erase()
    assert (report.num_records, report.problem) == (5, "")
    assert present(store, [*mine, *theirs]) == [False] * 5
    assert sum(space.num_blocks for space in store.usage().namespaces) == 0
    store.touch(keys_of(mine))
    store.flush()
    for records in (theirs, mine):
        assert put(store, records) is PutOutcome.STORED
    assert present(store, [*mine, *theirs]) == [True] * 5
    assert store.erase().num_records == 5
    assert store.erase().num_records == 0


def test_after_close_nothing_is_erased_and_it_says_so(store: BlockStore) -> None:
    assert put(store, chain(ONE, 1)) is PutOutcome.STORED
    store.close()
    report = store.erase()
    assert report.num_records == 0
    assert report.problem


def test_a_tenant_is_chosen_by_its_salt_and_a_model_by_its_name() -> None:
    assert [NamespaceChoice.of(None, salt, "").includes(ONE) for salt in (None, "", "alice")] == [True, True, False]
    assert [NamespaceChoice.of(None, salt, "").includes(TWO) for salt in (None, "", "alice")] == [True, False, True]
    assert not NamespaceChoice.of(None, "alice", "the server's own").includes(TWO)
    names = ("one", ONE.namespace.hex()[:6], "two", "")
    assert [NamespaceChoice(name).includes(ONE) for name in names] == [True, True, False, False]
