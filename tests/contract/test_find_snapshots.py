"""The BlockStore contract, over every adapter: finding one prompt's snapshots, and telling of some of all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from application.ports.block_store import BlockStore
from application.ports.record_writer import PutOutcome
from domain.id_row import IdRow
from domain.ids import BlockHash
from domain.snapshot_place import SnapshotPlace
from tests.contract.test_block_store import ADAPTERS, ONE, TWO, put
from tests.support.store_records import chain, keys_of, snapshot

ROOT = BlockHash(ONE.namespace)


@pytest.fixture(params=ADAPTERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockStore]:
    store = ADAPTERS[request.param](tmp_path / "store")
    yield store
    assert store.check_integrity().problems == ()
    store.close()


def test_a_prompts_own_snapshots_are_found_among_those_of_others(store: BlockStore) -> None:
    blocks = chain(ONE, 2)
    hanging = [snapshot(blocks[1], tokens) for tokens in ([9, 9, 9], [], [5], [4], [4, 7], [4, 7, 7, 7])]
    assert put(store, [*blocks, snapshot(ONE, [3]), *hanging]) is PutOutcome.STORED
    end = blocks[1].key.hash  # type: ignore[union-attr]
    going_on = [(4, 7, 7), (9, 9, 9), (9, 9), (), (6,)]
    places = [SnapshotPlace(ROOT, IdRow((3, 4))), *(SnapshotPlace(end, IdRow(ids)) for ids in going_on)]
    at_root, *at_end = store.find_snapshots(ONE.namespace, places)
    assert [key.num_partial for key in at_root] == [1]
    empty, nines, five, four, four_seven, _ = keys_of([hanging[1], hanging[0], *hanging[2:]])
    assert five not in at_end[0]
    assert [list(keys) for keys in at_end] == [[empty, four, four_seven], [empty, nines], [empty], [empty], [empty]]
    assert [list(keys) for keys in store.find_snapshots(TWO.namespace, places)] == [[]] * 6
    store.delete([four])
    assert list(store.find_snapshots(ONE.namespace, places)[1]) == [empty, four_seven]


def test_no_more_snapshots_are_told_of_than_asked_for(store: BlockStore) -> None:
    hanging = [snapshot(ONE, [9] * length) for length in range(1, 6)]
    assert put(store, hanging) is PutOutcome.STORED
    assert list(store.followers(ONE.namespace, ROOT, 2)) == [record.key_ids for record in hanging[:2]]
    assert list(store.dependants(ONE.namespace, ROOT)) == keys_of(hanging)


def test_after_close_no_snapshot_is_found(store: BlockStore) -> None:
    assert put(store, [snapshot(ONE, [3])]) is PutOutcome.STORED
    store.close()
    assert [list(keys) for keys in store.find_snapshots(ONE.namespace, [SnapshotPlace(ROOT, IdRow((3, 4)))])] == [[]]
