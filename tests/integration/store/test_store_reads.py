"""What is being read stays while room is made for other records, and a store full of it is full."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import lmdb
import pytest

from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.lmdb.environment import Environment
from adapters.zstd.codec import ZstdStateCodec
from application.ports.block_store import PutOutcome
from domain.prefix.record import Record
from tests.support.stores.store_records import EventList, chain, keys_of, namespace_of

INFO = namespace_of("one")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbBlockStore]:
    store = LmdbBlockStore(tmp_path / "store", LmdbOptions(2 << 20), ZstdStateCodec(), EventList(), FakeClock())
    yield store
    assert store.check_integrity(payloads=True).problems == ()
    store.close()


def fill(store: LmdbBlockStore, seeds: range) -> list[Record]:
    records = [chain(INFO, 1, seed=seed, size_bytes=100_000)[0] for seed in seeds]
    for record in records:
        assert store.put([record]) is PutOutcome.STORED
    return records


def present(store: LmdbBlockStore, records: list[Record]) -> list[bool]:
    return [record is not None for record in store.get(keys_of(records))]


def test_what_is_being_read_is_not_evicted(store: LmdbBlockStore) -> None:
    kept = fill(store, range(3))
    with store._uses.reading(keys_of(kept)):
        with store._uses.reading(keys_of(kept[:1])):
            fill(store, range(10, 30))
            assert present(store, kept) == [True] * 3
        fill(store, range(100, 120))
        assert present(store, kept) == [True] * 3
    fill(store, range(200, 220))
    assert present(store, kept) == [False] * 3


def test_full_of_what_is_being_read_is_full(store: LmdbBlockStore) -> None:
    kept: list[Record] = []
    outcome = PutOutcome.STORED
    with ExitStack() as reads:
        while outcome is PutOutcome.STORED:
            record = chain(INFO, 1, seed=len(kept), size_bytes=100_000)
            outcome = store.put(record)
            if outcome is PutOutcome.STORED:
                kept += record
                reads.enter_context(store._uses.reading(keys_of(record)))
            assert len(kept) < 100
        assert outcome is PutOutcome.FULL
        assert all(present(store, kept))
    assert store.put(chain(INFO, 1, seed=999, size_bytes=100_000)) is PutOutcome.STORED


def test_who_reads_while_a_copy_takes_the_files_place_finds_nothing_wrong(
    store: LmdbBlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody gets in before it is known which file is open: to them it would be a stranger's."""
    kept = fill(store, range(3))
    num_read, note_file = [0], Environment._note_file

    def read_first(environment: Environment, *arguments: lmdb.Environment) -> None:
        num_read[0] += 1
        present(store, kept)
        note_file(environment, *arguments)

    with monkeypatch.context() as opening:
        opening.setattr(Environment, "_note_file", read_first)
        store.compact()
    assert num_read[0]
    assert not store.usage().faults
    assert present(store, kept) == [True] * 3
