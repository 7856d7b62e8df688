"""The block store that the settings ask for: where it lies, how large it may become, how it encodes."""

from functools import partial
from pathlib import Path
from shutil import disk_usage

from adapters.decorators.awaited_store import AwaitedStore
from adapters.lmdb import faults
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.gathering import Gathering
from adapters.memory.block_store import MemoryBlockStore
from adapters.system.memory_probe import SystemMemory
from adapters.zstd.buffer_pool import FRAMES
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from application.ports.block_store import BlockStore, OpenFailure, StoreOpenError
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.settings import StoreSettings
from domain.codec_choice import (
    TYPICAL_RATIO,
    StoreRates,
    StoreWrites,
    compression_pays,
    state_bytes_s,
    syncs_each_commit,
)
from interfaces.composition.backends import cache_dir
from interfaces.composition.store_quota import quota_bytes, remember_quota
from interfaces.composition.store_rates import num_threads, remembered_rates, store_rates

_RESERVE_SHARE = 0.03
_MAX_RESERVE_BYTES = 5 << 30


def store_dir(settings: StoreSettings) -> Path:
    """`store.dir`, or `store` in Cairn's cache folder."""
    return Path(settings.dir).expanduser() if settings.dir else cache_dir() / "store"


def open_lmdb_store(
    settings: StoreSettings, events: EventSink, clock: Clock, *, read_only: bool = False, keeps_planes: bool = False
) -> LmdbBlockStore:
    """The store on disk. `keeps_planes`: as in the codec. Raises StoreOpenError."""
    path = store_dir(settings)
    if read_only:
        writes = store_writes(settings, remembered_rates(path))
        options = LmdbOptions(0, read_only=True, num_threads=num_threads(), writes=writes)
        return LmdbBlockStore(path, options, ZstdStateCodec(), events, clock)
    # Before anything is written into it: the folder may be somebody else's.
    StoreDirectory(path).prepare()
    num_bytes = quota_bytes(settings, path)
    rates = store_rates(path) if "auto" in (settings.codec, settings.durability) else None
    writes = store_writes(settings, rates)
    options = LmdbOptions(
        num_bytes,
        durability=writes.durability,
        writes=writes,
        free_reserve_bytes=free_reserve_bytes(path),
        num_threads=num_threads(),
        max_age_s=settings.max_age.num_seconds if settings.max_age is not None else None,
    )
    compresses = writes.codec == "zstd"
    # Who names a codec wants that one, however slow.
    quick = ZstdStateCodec(compress=not compresses, keeps_planes=keeps_planes) if settings.codec == "auto" else None
    codec = ZstdStateCodec(compress=compresses, keeps_planes=keeps_planes)
    # Merging on the host is bound by the bytes, which one more copy adds to; reading planes, by the interpreter's lock.
    gathering = Gathering(lambda size_bytes: FRAMES.take(size_bytes).data) if keeps_planes else None
    store = LmdbBlockStore(path, options, codec, events, clock, quick_codec=quick, gathering=gathering)
    try:
        remember_quota(settings, path, num_bytes)
    except OSError as failure:
        message = f"the quota of {path} could not be remembered and may be another at the next start: {failure}"
        events.emit(StoreFault(faults.classify(failure), message, clock.now_ns()))
    return store


def free_reserve_bytes(path: Path) -> int:
    """What writing leaves free on the volume. Raises OSError."""
    return min(int(disk_usage(path).total * _RESERVE_SHARE), _MAX_RESERVE_BYTES)


def build_store(
    settings: StoreSettings, events: EventSink, clock: Clock, *, keeps_planes: bool = False
) -> BlockStore | None:
    """The store of a server. None for `off`, and when it cannot be opened: the server says so and goes on without, for
    good, or as long as another process has it. `keeps_planes`: as in the codec."""
    if settings.kind == "off":
        return None
    if settings.kind == "memory":
        total_bytes = SystemMemory().read().total_bytes or 0
        return MemoryBlockStore(settings.quota.resolve(total_bytes) if settings.quota is not None else None)
    opens = partial(open_lmdb_store, settings, events, clock, keeps_planes=keeps_planes)
    store_rates(store_dir(settings))  # also where the codec is named: a server tells how fast its disk is
    try:
        return opens()
    except StoreOpenError as failure:
        events.emit(StoreFault(f"open_{failure.failure.value}", str(failure), clock.now_ns()))
        return AwaitedStore(opens, failure, events, clock) if failure.failure is OpenFailure.BUSY else None


def writes_state_s(settings: StoreSettings) -> float | None:
    """Raw bytes of state a second that the store's disk takes, as it was measured; None: it was not."""
    rates = remembered_rates(store_dir(settings))
    if rates is None:
        return None
    return state_bytes_s(rates.write_bytes_s, compresses=store_writes(settings, rates).codec == "zstd")


def hurry_ratio(settings: StoreSettings) -> float:
    """How many times as many bytes a store writes in a hurry: `auto` takes the other codec then."""
    compresses = store_writes(settings, remembered_rates(store_dir(settings))).codec == "zstd"
    return TYPICAL_RATIO if compresses else 1 / TYPICAL_RATIO


def store_durability(settings: StoreSettings) -> str:
    """safe or fast: what `auto` comes to on the store's disk, as it was measured."""
    return store_writes(settings, remembered_rates(store_dir(settings))).durability


def store_writes(settings: StoreSettings, rates: StoreRates | None) -> StoreWrites:
    """What is set, and what `auto` comes to at these rates: dense and safe where there are none."""
    auto = "auto" if rates is not None else "unmeasured"
    codec, codec_by = settings.codec, "setting"
    if codec == "auto":
        codec, codec_by = ("zstd" if rates is None or compression_pays(rates) else "raw"), auto
    durability, durability_by = settings.durability, "setting"
    if durability == "auto":
        keeps_up = rates is None or syncs_each_commit(rates.write_bytes_s, compresses=codec == "zstd")
        durability, durability_by = ("safe" if keeps_up else "fast"), auto
    return StoreWrites(durability, durability_by, codec, codec_by)


__all__ = (
    "build_store",
    "free_reserve_bytes",
    "hurry_ratio",
    "open_lmdb_store",
    "quota_bytes",
    "store_dir",
    "store_durability",
    "store_writes",
    "writes_state_s",
)
