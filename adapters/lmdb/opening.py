"""Opening a store, and swapping its database for a smaller copy. Nothing here scans what is stored."""

import os
from shutil import rmtree

import lmdb

from adapters.lmdb import faults
from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.environment import Environment
from adapters.lmdb.faults import Damaged, FaultLog, classify
from adapters.lmdb.rows import STATE_KEY, State
from adapters.lmdb.volume import free_bytes
from adapters.lmdb.writer import Writer
from application.ports.block_store import CompactReport, OpenFailure, StoreOpenError

# What evicting may add to a full file before its pages can be given back.
_SHRINKING_BYTES = 64 << 20


def open_for_reading(directory: StoreDirectory, environment: Environment) -> None:
    """Beside a writing process or alone; changes nothing. Raises StoreOpenError."""
    directory.recognise()
    if not directory.data.exists():
        raise StoreOpenError(OpenFailure.VOLUME, f"there is no database in {directory.path} yet")
    try:
        environment.open()
        _read_state(environment)
    except (Damaged, lmdb.Error, OSError) as failure:
        environment.close()
        kind = OpenFailure.DAMAGED if classify(failure) == faults.DAMAGED else OpenFailure.VOLUME
        raise StoreOpenError(kind, f"{directory.path} cannot be read: {failure}") from None


def open_for_writing(
    directory: StoreDirectory, environment: Environment, writer: Writer, durability: str, log: FaultLog
) -> None:
    """Claims the directory; a damaged database is set aside and replaced by an empty one. Raises StoreOpenError."""
    directory.claim()
    try:
        if directory.is_from_other_boot():
            log.note(faults.DAMAGED, f"{directory.path} was open without syncing when the machine went down")
            directory.empty()
        if durability == "fast":
            directory.mark_boot()
        _open_or_replace(directory, environment, writer.quota.quota_bytes, log)
        if durability != "fast":
            environment.sync()
            directory.clear_boot()
        _fit(directory, environment, writer)
    except StoreOpenError:
        environment.close()
        directory.release()
        raise
    except (Damaged, lmdb.Error, OSError) as failure:
        environment.close()
        directory.release()
        raise StoreOpenError(OpenFailure.VOLUME, f"{directory.path} cannot be opened: {failure}") from None


def compact(directory: StoreDirectory, environment: Environment) -> CompactReport:
    """Copy what is live, then swap. Raises StoreOpenError(VOLUME) when there is no room for the copy."""
    before_bytes = directory.data.stat().st_size
    copy = directory.path / "compact"
    with environment.exclusive():
        live_bytes = environment.info()[0]
        if free_bytes(directory.path) < live_bytes:
            raise StoreOpenError(OpenFailure.VOLUME, f"{directory.path} has no room for a copy of {live_bytes} bytes")
        rmtree(copy, ignore_errors=True)
        copy.mkdir(mode=0o700)
        try:
            environment.copy_compact(str(copy))
            _sync_file(copy / "data.mdb")
            environment.close()
            (copy / "data.mdb").replace(directory.data)
            # Readers of other processes keep the old pair of files; a new pair keeps their slots out of ours.
            directory.readers.unlink(missing_ok=True)
        finally:
            rmtree(copy, ignore_errors=True)
            if not environment.is_open:
                environment.open()
    return CompactReport(before_bytes, directory.data.stat().st_size)


def _open_or_replace(directory: StoreDirectory, environment: Environment, quota_bytes: int, log: FaultLog) -> None:
    try:
        environment.open(spare_bytes=_SHRINKING_BYTES if directory.size_bytes > quota_bytes else 0)
        _read_state(environment)
    except (Damaged, lmdb.Error) as failure:
        if classify(failure) != faults.DAMAGED:
            raise
        log.note(faults.DAMAGED, f"{directory.path}: {failure}; set aside, starting empty")
        environment.close()
        directory.set_aside()
        environment.open()


def _read_state(environment: Environment) -> None:
    with environment.reading() as txn:
        value = txn.get(STATE_KEY, db=environment.trees.sys)
        if value is not None:
            State.unpack(value)


def _fit(directory: StoreDirectory, environment: Environment, writer: Writer) -> None:
    """When the quota was lowered: evict, and give the space back."""
    if environment.info()[0] <= writer.quota.quota_bytes:
        return
    writer.shrink()
    compact(directory, environment)
    if environment.info()[0] > writer.quota.quota_bytes:
        environment.close()
        directory.empty()
        environment.open()


def _sync_file(path: os.PathLike[str]) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


__all__ = ("compact", "open_for_reading", "open_for_writing")
