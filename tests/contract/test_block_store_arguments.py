"""The BlockStore contract on arguments that make no sense: refused as the caller's error before anything is read or
written, over every adapter, and never taken for damage of what is stored."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from application.ports.block_store import BlockStore, PutOutcome
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import BlockKey, Namespace, NamespaceInfo, SnapshotKey
from tests.contract.test_block_store import ADAPTERS, ONE, present, put
from tests.support.stores.store_records import chain, payload_of, snapshot


@pytest.fixture(params=ADAPTERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockStore]:
    store = ADAPTERS[request.param](tmp_path / "store")
    store.open_namespace(ONE)
    yield store
    problems, faults = store.check_integrity(payloads=True).problems, set(store.usage().faults)
    store.close()
    assert problems == ()
    assert faults <= {"injected"}


LONG, SHORT = b"x" * 600, b"x" * 31

REFUSED: dict[str, Callable[[BlockStore, bytes], object]] = {
    "keys": lambda store, hash: store.keys(Namespace(hash)),
    "get": lambda store, hash: store.get([BlockKey(ONE.namespace, BlockHash(hash))]),
    "get-snapshot": lambda store, digest: store.get([SnapshotKey(ONE.namespace, BlockHash(ONE.namespace), 1, digest)]),
    "delete": lambda store, hash: store.delete([BlockKey(ONE.namespace, BlockHash(hash))]),
    "followers": lambda store, hash: store.followers(ONE.namespace, BlockHash(hash), 1),
    "followers-namespace": lambda store, name: store.followers(Namespace(name), BlockHash(ONE.namespace), 1),
    "open-namespace": lambda store, name: store.open_namespace(NamespaceInfo(Namespace(name), "m", "{}")),
    "put-parent": lambda store, hash: store.put([replace(chain(ONE, 1)[0], parent=BlockHash(hash))]),
    "put-namespace": lambda store, name: store.put(chain(NamespaceInfo(Namespace(name), "m", "{}"), 1)),
}


@pytest.mark.parametrize("length", [LONG, SHORT], ids=["long", "short"])
@pytest.mark.parametrize("call", REFUSED)
def test_an_identifier_of_another_length_is_an_error_of_the_caller_and_never_damage(
    store: BlockStore, call: str, length: bytes
) -> None:
    before = chain(ONE, 2)
    assert put(store, before) is PutOutcome.STORED
    with pytest.raises(ValueError, match="32 bytes"):
        REFUSED[call](store, length)
    assert present(store, before) == [True, True]


@pytest.mark.parametrize(
    "wrong",
    [
        {"position": -1},
        {"position": 1 << 64},
        {"groups": {GroupIndex(1 << 16): payload_of(b"", 2)}},
    ],
    ids=["position-negative", "position-too-large", "group-too-large"],
)
def test_a_record_that_cannot_be_written_down_is_an_error_of_the_caller(
    store: BlockStore, wrong: dict[str, object]
) -> None:
    before = chain(ONE, 2)
    assert put(store, before[:1]) is PutOutcome.STORED
    with pytest.raises(ValueError, match="a record"):
        store.put([replace(before[1], **wrong)])
    assert put(store, before) is PutOutcome.STORED


def test_a_snapshot_hangs_where_its_key_says(store: BlockStore) -> None:
    """Elsewhere it would count as hanging on one block and be listed under another."""
    blocks = chain(ONE, 2)
    misplaced = snapshot(blocks[1], [1])
    assert put(store, blocks) is PutOutcome.STORED
    with pytest.raises(ValueError, match="parent"):
        store.put([replace(misplaced, parent=BlockHash(ONE.namespace))])
