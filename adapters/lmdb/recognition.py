"""Whether a database is a store of ours: asked when a power cut tore the `format` file, or left none.

It is when it has exactly our trees, and either a state row whose checksum holds or no entries at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from adapters.lmdb.faults import Damaged
from adapters.lmdb.header import read_header
from adapters.lmdb.rows import STATE_KEY, State

TREES = ("sys", "ns", "rec", "kid", "lru", "dat")


@dataclass(frozen=True, slots=True)
class StoreKind:
    """What a folder holds. `title`: what its `format` file begins with. `check_state`: of the value that its database
    has under `state_key` in `sys`; raises Damaged."""

    title: bytes
    state_key: bytes
    check_state: Callable[[bytes], object]


BLOCKS = StoreKind(b"cairn block store", STATE_KEY, State.unpack)


def is_store_database(data: Path, kind: StoreKind = BLOCKS) -> bool:
    """Reads a handful of pages and changes nothing; nobody else has the file open for writing."""
    try:
        found = read_header(data)
        if found is None or found[1] < found[0].file_bytes:
            return False
        with lmdb.open(
            str(data), subdir=False, readonly=True, lock=False, create=False, max_dbs=len(TREES), lib_version=0
        ) as env:
            return _has_our_trees(env, kind)
    except (Damaged, lmdb.Error, OSError):
        return False


def _has_our_trees(env: lmdb.Environment, kind: StoreKind) -> bool:
    names = [name.encode() for name in TREES]
    with env.begin() as txn:
        found = sorted(bytes(key) for key in txn.cursor().iternext(values=False))
        if found != sorted(names):
            return False
    trees: dict[bytes, Any] = {name: env.open_db(name, create=False) for name in names}
    with env.begin() as txn:
        value = txn.get(kind.state_key, db=trees[b"sys"])
        if value is not None:
            kind.check_state(value)
            return True
        return not any(txn.stat(tree)["entries"] for tree in trees.values())


__all__ = ("BLOCKS", "TREES", "StoreKind", "is_store_database")
