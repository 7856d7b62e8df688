"""Opening a store, to read or to write. Nothing here scans what is stored."""

from collections.abc import Callable
from time import gmtime, sleep, strftime

import lmdb

from adapters.lmdb import faults
from adapters.lmdb.compaction import Shrinking, fit
from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.environment import Environment, SamePidError
from adapters.lmdb.faults import Damaged, FaultLog, classify
from application.ports.block_store import OpenFailure, StoreOpenError

# A file that is being written to may look wrong for as long as a commit takes.
_READ_ATTEMPTS, _READ_WAIT_S = 50, 0.02

_UNRECOVERED = (
    "{} was open without syncing when the machine went down, or its disk failed to sync: who only reads it would find"
    " some of what was lost; start the server, or `cairn cache compact`, which goes back to what was synced"
)


def open_for_reading(directory: StoreDirectory, environment: Environment) -> None:
    """Beside a writing process or alone; changes nothing. Raises StoreOpenError."""
    directory.recognise()
    for attempt in range(_READ_ATTEMPTS):
        if not directory.size_bytes:
            raise StoreOpenError(OpenFailure.VOLUME, f"there is no database in {directory.path} yet")
        if not directory.is_written_elsewhere() and directory.is_unsynced():
            raise StoreOpenError(OpenFailure.DAMAGED, _UNRECOVERED.format(directory.path))
        try:
            environment.open()
            _read_state(directory, environment)
            return
        except SamePidError as failure:
            raise _same_pid(directory, failure) from None
        except (Damaged, lmdb.Error, OSError) as failure:
            environment.close()
            is_damaged = classify(failure) == faults.DAMAGED
            if is_damaged and attempt + 1 < _READ_ATTEMPTS and directory.is_written_elsewhere():
                sleep(_READ_WAIT_S)
                continue
            kind = OpenFailure.DAMAGED if is_damaged else OpenFailure.VOLUME
            raise StoreOpenError(kind, f"{directory.path} cannot be read: {failure}") from None


def open_for_writing(
    directory: StoreDirectory, environment: Environment, writer: Shrinking, durability: str, log: FaultLog
) -> None:
    """Claims the directory; a damaged database is set aside and replaced by an empty one. Raises StoreOpenError."""
    if opened := directory.claim():
        log.note(faults.EXPOSED, f"{directory.path}: open to other users until now: {', '.join(opened)}")
    try:
        if directory.is_unsynced():
            _recover(directory, log)
        begin = directory.mark_boot if durability == "fast" else directory.clear_boot
        _open_or_replace(directory, environment, writer, begin, log)
        # Whatever was made just now, or by a process that was killed before it came to this.
        directory.sync()
    except StoreOpenError:
        environment.close()
        directory.release()
        raise
    except SamePidError as failure:
        directory.release()
        raise _same_pid(directory, failure) from None
    except (Damaged, lmdb.Error, OSError) as failure:
        environment.close()
        directory.release()
        raise StoreOpenError(OpenFailure.VOLUME, f"{directory.path} cannot be opened: {failure}") from None


def _recover(directory: StoreDirectory, log: FaultLog) -> None:
    """Of a store whose commits were not synced, after a power cut or a sync that failed."""
    if (synced_s := directory.roll_back()) is not None:
        synced = strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(synced_s))
        log.note(
            faults.ROLLED_BACK,
            f"{directory.path}: the machine went down, or the disk failed to sync: what was stored after the last sync,"
            f" at {synced}, is gone",
        )
    else:
        log.note(faults.DAMAGED, f"{directory.path} was open without syncing when the machine went down")
        directory.empty()
    directory.clear_boot()


def _open_or_replace(
    directory: StoreDirectory, environment: Environment, writer: Shrinking, begin: Callable[[], None], log: FaultLog
) -> None:
    """`begin`: called once what is there is whole on the disk, before anything is committed."""
    try:
        environment.open()
        _read_state(directory, environment)
        begin()
        fit(directory, environment, writer, log)
    except (Damaged, lmdb.Error) as failure:
        if classify(failure) != faults.DAMAGED:
            raise
        log.note(faults.DAMAGED, f"{directory.path}: {failure}; set aside, starting empty")
        environment.close()
        directory.set_aside()
        environment.open()
        begin()


def _read_state(directory: StoreDirectory, environment: Environment) -> None:
    with environment.reading() as txn:
        value = txn.get(directory.kind.state_key, db=environment.trees.sys)
        if value is not None:
            directory.kind.check_state(value)


def _same_pid(directory: StoreDirectory, failure: SamePidError) -> StoreOpenError:
    return StoreOpenError(OpenFailure.BUSY, f"{directory.path}: {failure.strerror}")


__all__ = ("open_for_reading", "open_for_writing")
