"""Clearing: no file of a store holds token ids of a cleared prompt."""

from pathlib import Path
from struct import pack

import pytest

from application.ports.block_store import OpenFailure, PutOutcome, StoreOpenError
from domain.prefix.fingerprint import NamespaceFilter
from domain.prefix.record import NamespaceInfo, Record
from tests.support.stores.lmdb_store import open_store
from tests.support.stores.store_records import chain, keys_of, namespace_of, same, snapshot

ALICE, BOB = namespace_of("org/one?salt=alice"), namespace_of("org/one?salt=bob")


def content(info: NamespaceInfo) -> list[Record]:
    """Heads inside of leaf pages, payloads in pages of their own and beside them."""
    records = [record for seed in range(20) for record in chain(info, 3, seed=seed, size_bytes=100 + 700 * seed)]
    return [*records, *(snapshot(record, [7, 8, 9, number], 60) for number, record in enumerate(records))]


def traces(path: Path, records: list[Record]) -> list[str]:
    """Where token ids of these records, or what their state is stored as, can be found in any file of the store."""
    files = {file.name: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    found: list[str] = []
    for record in records:
        if len(record.key_ids) == 16:
            wanted = pack("<16I", *record.key_ids)
            found += [name for name, data in files.items() if wanted in data or record.key.hash in data]  # type: ignore[union-attr]
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    store = open_store(path)
    for info in (ALICE, BOB):
        store.open_namespace(info)
        # Several transactions, some of which free pages of the ones before.
        for record in content(info):
            assert store.put([record]) is PutOutcome.STORED
    assert traces(path, content(ALICE))
    store.close()
    return path


def test_a_cleared_store_holds_no_trace_of_its_records(path: Path) -> None:
    store = open_store(path)
    report = store.erase()
    assert (report.num_records, report.problem) == (240, "")
    assert traces(path, [*content(ALICE), *content(BOB)]) == []
    assert ALICE.fingerprint.encode() not in (path / "data.mdb").read_bytes()
    assert store.put(content(BOB)) is PutOutcome.STORED
    assert store.check_integrity(payloads=True).problems == ()
    store.close()
    again = open_store(path)
    assert all(map(same, again.get(keys_of(content(BOB))), content(BOB)))
    again.close()


def test_one_tenant_goes_without_a_trace_and_the_other_stays_whole(path: Path) -> None:
    store = open_store(path)
    report = store.erase(NamespaceFilter.of(None, "alice", "").includes)
    assert (report.num_records, report.problem) == (120, "")
    assert traces(path, content(ALICE)) == []
    assert all(map(same, store.get(keys_of(content(BOB))), content(BOB)))
    assert store.check_integrity(payloads=True).problems == ()
    store.close()


def test_clearing_without_room_for_a_copy_reports_a_problem(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the copy does on a full volume."""

    def refuse(*_: object) -> None:
        raise StoreOpenError(OpenFailure.VOLUME, "there is no room for a copy")

    store = open_store(path)
    monkeypatch.setattr("adapters.lmdb.compaction.Compaction.compact", refuse)
    report = store.erase(lambda info: info == ALICE)
    assert report.num_records == 120
    assert "may be left in free pages" in report.problem
    assert [record is None for record in store.get(keys_of(content(ALICE)))] == [True] * 120
    monkeypatch.undo()
    assert store.erase(lambda info: info == ALICE).problem == ""
    assert traces(path, content(ALICE)) == []
    store.close()


def test_a_volume_that_fails_while_clearing_is_opened_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new database cannot be made, and the store is not dead for good."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "input/output error")

    store = open_store(path)
    monkeypatch.setattr("adapters.lmdb.environment.inspect", fail)
    report = store.erase()
    assert report.num_records == 0
    assert report.problem
    monkeypatch.undo()
    store._containment._paused_until_ns = 0  # pyright: ignore[reportPrivateUsage]
    assert store.put(content(BOB)) is PutOutcome.STORED
    assert all(map(same, store.get(keys_of(content(BOB))), content(BOB)))
    store.close()
