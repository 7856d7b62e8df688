"""Giving disk space back: live records are copied to a new file, which replaces the database.

The copy needs free space for the live records. Without it the old file stays at its size: it grows no further, and
eviction keeps its records below the quota.
"""

import os
from typing import Protocol

import lmdb

from adapters.lmdb import faults
from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.environment import Environment
from adapters.lmdb.faults import FaultLog, classify
from adapters.lmdb.growth import growth_told
from adapters.lmdb.private_files import open_private, sync_file
from adapters.lmdb.room import Quota
from adapters.lmdb.volume import free_bytes
from application.ports.block_store import Advance, OpenFailure, StoreOpenError, nobody_looks

# What evicting may add to a full file before its pages can be given back.
_SPARE_BYTES = 64 << 20
# Names, and what other programs write meanwhile.
_MARGIN_BYTES = 1 << 20


class Shrinking(Protocol):
    """Whoever evicts from a database."""

    @property
    def quota(self) -> Quota: ...

    def shrink(self) -> int:
        """Evict down to the limit; returns how many went."""
        ...


def compact(directory: StoreDirectory, environment: Environment, advance: Advance = nobody_looks) -> None:
    """Copy what is live, then swap; the store is as before when that fails or is interrupted, which shows once LMDB has
    copied all. The caller has the environment to itself.

    Raises StoreOpenError(VOLUME) when there is no room for the copy, or Damaged, lmdb.Error, OSError.
    """
    needed_bytes = environment.live_bytes() + _MARGIN_BYTES
    if free_bytes(directory.path) < needed_bytes:
        raise _no_room(directory, f"{needed_bytes} bytes")
    environment.sync()  # copying may take minutes, in which a power cut is to leave all of it
    try:
        _copy(directory, environment, advance)
    except BaseException as failure:
        directory.copy.unlink(missing_ok=True)
        if isinstance(failure, lmdb.Error | OSError) and _is_full(directory, failure):
            raise _no_room(directory, str(failure)) from None
        raise
    environment.close()
    try:
        directory.swap_in(directory.copy)
    finally:
        environment.open()


def shrink(
    directory: StoreDirectory,
    environment: Environment,
    writer: Shrinking,
    *,
    always: bool = False,
    advance: Advance = nobody_looks,
) -> None:
    """Evict down to the quota; compact when the file is larger than that, or `always`. What was evicted stays evicted.

    Raises StoreOpenError(VOLUME) without room for the copy, or Damaged, lmdb.Error, OSError.
    """
    with environment.exclusive():
        environment.resize(_SPARE_BYTES)
        try:
            writer.shrink()
            if always or environment.info()[0] > writer.quota.quota_bytes:
                compact(directory, environment, advance)
        except (lmdb.Error, OSError) as failure:
            if _is_full(directory, failure):
                raise _no_room(directory, str(failure)) from None
            raise
        finally:
            environment.resize()


def fit(directory: StoreDirectory, environment: Environment, writer: Shrinking, log: FaultLog) -> None:
    """When the quota was lowered: give the space back, if the volume has room for the copy. Raises Damaged."""
    quota = writer.quota
    is_fitting = environment.live_bytes() <= quota.limit_pages * quota.page_bytes
    if is_fitting and environment.info()[0] <= quota.quota_bytes:
        return
    try:
        shrink(directory, environment, writer)
    except (StoreOpenError, lmdb.Error, OSError) as failure:
        if not isinstance(failure, StoreOpenError) and classify(failure) == faults.DAMAGED:
            raise
        why = (
            f"{failure}; the file stays above the quota of {quota.quota_bytes} bytes until a start or compact has room"
        )
        log.note(faults.NO_ROOM, why)
        if not environment.is_open:
            environment.open()
        return
    if environment.info()[0] > quota.quota_bytes:
        log.note(faults.NO_ROOM, f"{directory.path} does not fit its quota although all was evicted; starting empty")
        environment.close()
        directory.empty()
        environment.open()


def _copy(directory: StoreDirectory, environment: Environment, advance: Advance) -> None:
    directory.copy.unlink(missing_ok=True)
    handle = open_private(directory.copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with growth_told(handle, advance):
            environment.copy_compact(handle)
        sync_file(handle)
    finally:
        os.close(handle)


def _is_full(directory: StoreDirectory, failure: Exception) -> bool:
    """LMDB calls a write that was cut short an I/O error, whatever the reason."""
    kind = classify(failure)
    return kind == faults.DISK_FULL or (kind == faults.IO_ERROR and directory.is_volume_full())


def _no_room(directory: StoreDirectory, what: str) -> StoreOpenError:
    return StoreOpenError(OpenFailure.VOLUME, f"{directory.path} has no room for a copy of what is live ({what})")


__all__ = ("Shrinking", "compact", "fit", "shrink")
