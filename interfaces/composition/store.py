"""The stores that the settings ask for: blocks on disk or in memory, the size of their file, blocks that several
servers share, and documents."""

import json
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import disk_usage

from adapters.decorators.awaited_store import AwaitedStore
from adapters.lmdb import faults
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.lmdb.directory import DOCUMENTS_FOLDER, StoreDirectory
from adapters.lmdb.private_files import existing, read_private, replace_durably
from adapters.memory.block_store import MemoryBlockStore
from adapters.sqlite.document_store import SqliteDocumentStore
from adapters.system.backup import exclude_from_backup
from adapters.system.machine import SystemMemory
from adapters.system.private_file import read_secret
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from application.ports.block_store import BlockStore, OpenFailure, StoreOpenError
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.kv_events import KvEventPublisher
from application.ports.shared_store import SharedStore
from application.services.documents import Documents
from application.settings import CacheSettings, Settings, StoreSettings
from domain.errors import ServerUnavailable
from interfaces.composition.backends import cache_dir

READ_TIMEOUT_S = 20.0
"""The limit on one read of a store; beyond it the store is not used until the read returns."""

DOCUMENTS_QUOTA_BYTES = 256 << 20
DOCUMENTS_MAX_AGE_S = 30 * 86_400
"""The age limit of documents where `store.max_age` is not set."""

MIN_FLEET_KEY_BYTES, MAX_FLEET_KEY_BYTES = 32, 4096

_MAX_THREADS = 12
_RESERVE_SHARE = 0.03
_MAX_RESERVE_BYTES = 5 << 30
_DEFAULT_SHARE = 0.2
_MAX_DEFAULT_BYTES = 128 << 30


def store_dir(settings: StoreSettings) -> Path:
    """Returns `store.dir`, or `store` in Cairn's cache folder."""
    return Path(settings.dir).expanduser() if settings.dir else cache_dir() / "store"


def build_store(settings: StoreSettings, events: EventSink, clock: Clock) -> BlockStore | None:
    """Returns the store of a server. None for `off`, and when the folder holds something else: the server reports it
    and runs without a store. Where another process has the store, or its volume failed, it is opened later."""
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


def build_shared_store(settings: StoreSettings) -> SharedStore | None:
    """Returns the store that several servers share, which connects later; None without one. Raises ServerUnavailable
    for a key file that cannot be used."""
    if not settings.shared:
        return None
    from adapters.resp.shared_store import RespSharedStore  # here: its library takes a tenth of a second to import

    key = _fleet_key(settings.shared_key_file)
    nodes = settings.shared_nodes
    return RespSharedStore(settings.shared, ZstdStateCodec(), key, settings.shared_password, nodes=nodes)


def build_kv_publisher(settings: CacheSettings, events: EventSink, clock: Clock) -> KvEventPublisher | None:
    """Returns the publisher of KV events, which listens already; None without one. Raises ServerUnavailable."""
    if not settings.events:
        return None
    try:
        from adapters.zmq.event_wire import EventWire
        from adapters.zmq.publisher import CannotPublish, ZmqPublisher
    except ImportError:
        raise ServerUnavailable('cache.events: needs pyzmq; install the extra "events" of cairn-mlx') from None
    wire = EventWire(settings.events_block, are_integers=settings.events_hash == "int")
    try:
        return ZmqPublisher(settings.events, settings.events_replay, settings.events_topic, wire, events, clock)
    except CannotPublish as error:
        raise ServerUnavailable(str(error)) from None


def _fleet_key(name: str | None) -> bytes:
    if name is None:
        return b""
    try:
        key = read_secret(Path(name).expanduser(), MAX_FLEET_KEY_BYTES).strip()
        if len(key) < MIN_FLEET_KEY_BYTES:
            raise ValueError(f"holds {len(key)} bytes and must hold {MIN_FLEET_KEY_BYTES}: use openssl rand -hex 32")
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise ServerUnavailable(f"store.shared_key_file: {name} {problem}") from None
    return key


def open_lmdb_store(
    settings: StoreSettings, events: EventSink, clock: Clock, *, read_only: bool = False
) -> LmdbBlockStore:
    """Returns the store on disk. Raises StoreOpenError."""
    path = store_dir(settings)
    num_threads = _num_threads()
    if read_only:
        options = LmdbOptions(0, read_only=True, num_threads=num_threads)
        return LmdbBlockStore(path, options, ZstdStateCodec(), events, clock)
    # Before anything is written into it: the folder may belong to another program.
    StoreDirectory(path).prepare()
    exclude_from_backup(path)
    num_bytes = quota_bytes(settings, path)
    options = LmdbOptions(
        num_bytes,
        free_reserve_bytes=_free_reserve_bytes(path),
        num_threads=num_threads,
        max_age_s=settings.max_age.num_seconds if settings.max_age is not None else None,
    )
    store = LmdbBlockStore(path, options, ZstdStateCodec(), events, clock)
    try:
        _remember_quota(settings, path, num_bytes)
    except OSError as failure:
        message = f"the quota of {path} could not be saved and may be another at the next start: {failure}"
        events.emit(StoreFault(faults.classify(failure), message, clock.now_ns()))
    return store


def empty_store(settings: StoreSettings) -> None:
    """Removes all stored records, also where the store cannot be opened. Raises StoreOpenError."""
    StoreDirectory(store_dir(settings)).empty_unopened()


def quota_bytes(settings: StoreSettings, path: Path) -> int:
    """Returns the limit on the size of the store's file, at most the whole volume.

    A share is one of the space free when it was first used, plus the size of the store then; it is saved in the store's
    folder, because free space depends on other programs: a quota that followed it would shrink, and evict, at every
    start. The default is a fifth, or the store's size where that is more, and at most 128 GiB.
    """
    usage = disk_usage(existing(path))
    if settings.quota is not None and settings.quota.num_bytes is not None:
        return min(settings.quota.num_bytes, usage.total)
    remembered = _remembered_quota(settings, path)
    if remembered is not None:
        return min(remembered, usage.total)
    taken_bytes = StoreDirectory(path).size_bytes
    available_bytes = usage.free + taken_bytes
    if settings.quota is not None:
        return settings.quota.resolve(available_bytes)
    return min(max(int(available_bytes * _DEFAULT_SHARE), taken_bytes), _MAX_DEFAULT_BYTES)


def build_documents(settings: Settings, events: EventSink, clock: Clock) -> Documents:
    """Returns the service of stored responses and tool calls. Opens nothing yet."""
    opens = partial(open_documents, settings.store, events, clock)
    return Documents(opens, events, clock, salt=settings.cache.salt, timeout_s=READ_TIMEOUT_S)


def open_documents(settings: StoreSettings, events: EventSink, clock: Clock) -> SqliteDocumentStore:
    """Returns documents on disk where the store is, else in memory. A folder that cannot be the store's is reported,
    and documents are kept in memory."""
    path, reserve_bytes = None, 0
    if settings.kind == "lmdb":
        folder = store_dir(settings)
        try:
            StoreDirectory(folder).prepare()  # before anything is written: the folder may belong to another program
            path, reserve_bytes = documents_file(settings), _free_reserve_bytes(folder)
        except (StoreOpenError, OSError) as failure:
            kind = failure.failure.value if isinstance(failure, StoreOpenError) else "volume"
            events.emit(StoreFault(f"open_{kind}", f"stored responses are kept in memory: {failure}", clock.now_ns()))
    max_age_s = DOCUMENTS_MAX_AGE_S if settings.max_age is None else settings.max_age.num_seconds
    return SqliteDocumentStore(
        path, DOCUMENTS_QUOTA_BYTES, events, clock, max_age_s=max_age_s, free_reserve_bytes=reserve_bytes
    )


def documents_file(settings: StoreSettings) -> Path:
    return store_dir(settings) / DOCUMENTS_FOLDER / "documents.sqlite"


def _num_threads() -> int:
    """Returns the threads that encode, and that decode, a record each: three quarters of the processors. The first
    request after a restart waits for decoding, which scales with threads; the other processors compute and serve."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return max(2, min(_MAX_THREADS, usable * 3 // 4))


def _free_reserve_bytes(path: Path) -> int:
    """Returns the space that writing leaves free on the volume. Raises OSError."""
    return min(int(disk_usage(path).total * _RESERVE_SHARE), _MAX_RESERVE_BYTES)


def _remember_quota(settings: StoreSettings, path: Path, num_bytes: int) -> None:
    """Saves a share with the setting it came from, so that another setting counts. Raises OSError."""
    is_fixed = settings.quota is not None and settings.quota.num_bytes is not None
    if is_fixed or _remembered_quota(settings, path) is not None:
        return
    content = json.dumps({"setting": _quota_setting(settings), "quota_bytes": num_bytes})
    replace_durably(StoreDirectory(path).quota, content.encode() + b"\n")


def _remembered_quota(settings: StoreSettings, path: Path) -> int | None:
    """Returns None where none was saved, or it is of another setting or unreadable."""
    with suppress(OSError, StoreOpenError, ValueError, TypeError, KeyError):
        found = json.loads(read_private(StoreDirectory(path).quota))
        num_bytes = found["quota_bytes"]
        if found["setting"] == _quota_setting(settings) and isinstance(num_bytes, int) and num_bytes > 0:
            return num_bytes
    return None


def _quota_setting(settings: StoreSettings) -> str:
    return "default" if settings.quota is None else str(settings.quota)
