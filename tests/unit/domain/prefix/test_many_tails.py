"""Many users behind one system prompt: what a lookup costs does not depend on how many tails they have left there.

Counted in calls made, not in time.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.fake import ATTENTION, HYBRID, FakeClock, FakeOptions
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.zstd.codec import ZstdStateCodec
from application.ports.block_store import BlockStore, PutOutcome
from domain.id_row import IdRow
from domain.models.state_layout import StateLayout
from domain.prefix.hashing import snapshot_key
from domain.prefix.record import Record, SnapshotKey
from tests.support.stores.cache_driver import BLOCK, VOCAB, CacheDriver
from tests.support.telemetry.recording import RecordingEvents

OPTIONS = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
SYSTEM = list(range(100, 100 + 2 * BLOCK))
PROMPT = [*SYSTEM, *range(500, 507)]
FEW, MANY = 60, 1_200


def strangers(own: Record, count: int) -> list[Record]:
    """Tails of other prompts where `own` hangs, of all lengths."""
    assert isinstance(own.key, SnapshotKey)
    records: list[Record] = []
    for user in range(count):
        tokens = (1_000 + user, *range(user % (BLOCK - 2)))
        key = snapshot_key(own.key.namespace, own.key.block_hash, tokens)
        position = own.position - own.key.num_partial + len(tokens)
        records.append(replace(own, key=key, position=position, key_ids=IdRow(tokens)))
    return records


def open_lmdb(path: Path) -> LmdbBlockStore:
    return LmdbBlockStore(path, LmdbOptions(64 << 20), ZstdStateCodec(), RecordingEvents(), FakeClock())


PLACES: dict[str, Callable[[Path], BlockStore | None]] = {"hot": lambda _: None, "lmdb": open_lmdb}


def num_calls(work: Callable[[], object]) -> int:
    """Functions entered by this thread, Python's and C's."""
    count = 0

    def note(_frame: object, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def cost(layout: StateLayout, store: BlockStore | None, num_strangers: int) -> int:
    """Of looking up a prompt that was seen before, among so many that share its beginning."""
    driver = CacheDriver(replace(OPTIONS, layout=layout), store=store, hot_bytes=0 if store is not None else 1 << 30)
    driver.run(PROMPT)
    tail = next(record for record in everything(driver, store) if isinstance(record.key, SnapshotKey))
    records = strangers(tail, num_strangers)
    if store is None:
        driver.hot.put(records)
    else:
        batches = [records[at : at + 100] for at in range(0, num_strangers, 100)]
        assert {store.put(batch) for batch in batches} == {PutOutcome.STORED}
        driver = CacheDriver(replace(OPTIONS, layout=layout), store=store, hot_bytes=0)
    calls = num_calls(lambda: driver.cancel(driver.begin(PROMPT)))
    assert driver.run(PROMPT).computed == 0
    return calls


def everything(driver: CacheDriver, store: BlockStore | None) -> Sequence[Record]:
    if store is None:
        return [node.record for node in driver.hot._tree.nodes.values()]
    namespace = store.usage().namespaces[0].info.namespace
    tails = [key for key in store.keys(namespace) if isinstance(key, SnapshotKey)]
    return [record for record in store.get(tails) if record is not None]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layout", [ATTENTION, HYBRID], ids=["attention", "hybrid"])
def test_a_lookup_costs_the_same_behind_few_tails_and_many(place: str, layout: StateLayout, tmp_path: Path) -> None:
    costs: list[int] = []
    for count in (FEW, MANY):
        store = PLACES[place](tmp_path / str(count))
        costs.append(cost(layout, store, count))
        if store is not None:
            store.close()
    assert costs[1] <= costs[0] * 1.1
