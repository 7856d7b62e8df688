"""The block store that the settings ask for: where it lies, how large it may become."""

import os
from functools import partial
from pathlib import Path
from shutil import disk_usage

from adapters.decorators.awaited_store import AwaitedStore
from adapters.lmdb import faults
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.lmdb.directory import StoreDirectory
from adapters.memory.block_store import MemoryBlockStore
from adapters.system.memory_probe import SystemMemory
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from application.ports.block_store import BlockStore, OpenFailure, StoreOpenError
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.settings import StoreSettings
from interfaces.composition.backends import cache_dir
from interfaces.composition.store_quota import quota_bytes, remember_quota

READ_TIMEOUT_S = 20.0
"""How long one read may take before the store is left alone until it returns."""

_MAX_THREADS = 12
_RESERVE_SHARE = 0.03
_MAX_RESERVE_BYTES = 5 << 30


def store_dir(settings: StoreSettings) -> Path:
    """`store.dir`, or `store` in Cairn's cache folder."""
    return Path(settings.dir).expanduser() if settings.dir else cache_dir() / "store"


def num_threads() -> int:
    """For encoding and decoding, a record each: three quarters of the processors. Decoding a prefix after a restart is
    what its request waits for, and it scales with threads; the rest are left to compute and to serve."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return max(2, min(_MAX_THREADS, usable * 3 // 4))


def open_lmdb_store(
    settings: StoreSettings, events: EventSink, clock: Clock, *, read_only: bool = False
) -> LmdbBlockStore:
    """The store on disk. Raises StoreOpenError."""
    path = store_dir(settings)
    codec = ZstdStateCodec()
    if read_only:
        return LmdbBlockStore(path, LmdbOptions(0, read_only=True, num_threads=num_threads()), codec, events, clock)
    # Before anything is written into it: the folder may be somebody else's.
    StoreDirectory(path).prepare()
    num_bytes = quota_bytes(settings, path)
    options = LmdbOptions(
        num_bytes,
        free_reserve_bytes=free_reserve_bytes(path),
        num_threads=num_threads(),
        max_age_s=settings.max_age.num_seconds if settings.max_age is not None else None,
    )
    store = LmdbBlockStore(path, options, codec, events, clock)
    try:
        remember_quota(settings, path, num_bytes)
    except OSError as failure:
        message = f"the quota of {path} could not be remembered and may be another at the next start: {failure}"
        events.emit(StoreFault(faults.classify(failure), message, clock.now_ns()))
    return store


def free_reserve_bytes(path: Path) -> int:
    """What writing leaves free on the volume. Raises OSError."""
    return min(int(disk_usage(path).total * _RESERVE_SHARE), _MAX_RESERVE_BYTES)


def build_store(settings: StoreSettings, events: EventSink, clock: Clock) -> BlockStore | None:
    """The store of a server. None for `off`, and when the folder holds something else: the server says so and goes on
    without, for good; or until it can be opened, where another process has it or its volume failed."""
    if settings.kind == "off":
        return None
    if settings.kind == "memory":
        total_bytes = SystemMemory().read().total_bytes or 0
        return MemoryBlockStore(settings.quota.resolve(total_bytes) if settings.quota is not None else None)
    opens = partial(open_lmdb_store, settings, events, clock)
    try:
        return opens()
    except StoreOpenError as failure:
        events.emit(StoreFault(f"open_{failure.failure.value}", str(failure), clock.now_ns()))
        if failure.failure not in {OpenFailure.BUSY, OpenFailure.VOLUME}:
            return None
        return AwaitedStore(opens, partial(empty_store, settings), failure, events, clock)


def empty_store(settings: StoreSettings) -> None:
    """Remove all that is stored, whatever keeps it from being opened. Raises StoreOpenError."""
    StoreDirectory(store_dir(settings)).empty_unopened()


__all__ = (
    "READ_TIMEOUT_S",
    "build_store",
    "empty_store",
    "free_reserve_bytes",
    "open_lmdb_store",
    "quota_bytes",
    "store_dir",
)
