"""A store to measure and records for it, for the benches of the block store."""

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.system.clock import SystemClock
from adapters.zstd.codec import ZstdStateCodec
from application.ports.block_store import PutOutcome
from bench.common.event_log import EventLog
from domain.id_row import IdRow
from domain.ids import BlockHash
from domain.prefix.record import BlockKey, GroupPayloads, Namespace, NamespaceInfo, Record

BLOCK = 256
INFO = NamespaceInfo(Namespace(sha256(b"bench").digest()), "bench", "{}")
Facts = dict[str, Any]


def open_store(
    path: Path, quota_bytes: int, *, compress: bool = True, threads: int = 2, sync: bool = True
) -> LmdbBlockStore:
    options = LmdbOptions(quota_bytes, num_threads=threads)
    return LmdbBlockStore(path, options, ZstdStateCodec(compress=compress), EventLog(), SystemClock())


def record(number: int, groups: GroupPayloads, *, parent: BlockHash | None = None) -> Record:
    key = BlockKey(INFO.namespace, BlockHash(sha256(number.to_bytes(8, "big")).digest()))
    return Record(key, parent or BlockHash(INFO.namespace), BLOCK, IdRow(range(BLOCK)), groups)


def put(store: LmdbBlockStore, records: list[Record]) -> None:
    assert store.put(records) is PutOutcome.STORED


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
