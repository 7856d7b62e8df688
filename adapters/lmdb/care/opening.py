"""Opening a store, to read or to write. Nothing here scans what is stored."""

from functools import partial
from time import sleep

import lmdb

from adapters.lmdb import faults
from adapters.lmdb.care.compaction import fit
from adapters.lmdb.care.probe import unreadable_of
from adapters.lmdb.faults import Damaged, FaultLog, classify
from adapters.lmdb.file.directory import StoreDirectory
from adapters.lmdb.file.environment import Environment, SamePidError
from adapters.lmdb.format.rows import STATE_KEY, State
from adapters.lmdb.index.writer import Writer
from application.ports.block_store import OpenFailure, StoreOpenError

# A file that is being written to may look wrong for as long as a commit takes.
_READ_ATTEMPTS, _READ_WAIT_S = 50, 0.02


def open_for_reading(directory: StoreDirectory, environment: Environment) -> None:
    """Beside a writing process or alone; changes nothing. Raises StoreOpenError."""
    directory.recognise()
    for attempt in range(_READ_ATTEMPTS):
        if not directory.size_bytes:
            raise StoreOpenError(OpenFailure.VOLUME, f"there is no database in {directory.path} yet")
        try:
            environment.open()
            _read_state(environment)
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


def open_for_writing(directory: StoreDirectory, environment: Environment, writer: Writer, log: FaultLog) -> None:
    """Claims the directory; a damaged database is emptied. Raises StoreOpenError."""
    if opened := directory.claim():
        log.note(faults.EXPOSED, f"{directory.path}: open to other users until now: {', '.join(opened)}")
    try:
        if (number := directory.renew()) is not None:
            log.note(faults.OLDER, f"{directory.path} was of an earlier version (format {number}) and is emptied")
        _open_or_replace(directory, environment, writer, log)
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


def _open_or_replace(directory: StoreDirectory, environment: Environment, writer: Writer, log: FaultLog) -> None:
    try:
        unreadable = environment.notes.begin(partial(unreadable_of, directory.path))
        environment.open()
        _read_state(environment)
        for record_id in unreadable:
            log.note(
                faults.UNREADABLE, f"{directory.path}: {writer.quarantine(record_id)} cannot be read from the disk"
            )
        fit(directory, environment, writer, log)
    except (Damaged, lmdb.Error) as failure:
        if classify(failure) != faults.DAMAGED:
            raise
        log.note(faults.DAMAGED, f"{directory.path}: {failure}; emptied")
        environment.close()
        directory.empty()
        environment.notes.clear()
        environment.open()


def _read_state(environment: Environment) -> None:
    with environment.reading() as txn:
        if (value := txn.get(STATE_KEY, db=environment.trees.sys)) is not None:
            State.unpack(value)


def _same_pid(directory: StoreDirectory, failure: SamePidError) -> StoreOpenError:
    return StoreOpenError(OpenFailure.BUSY, f"{directory.path}: {failure.strerror}")
