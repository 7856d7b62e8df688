"""The containment of a store's failures: reads miss, writes are refused, each fault is counted, and the store is
reopened.

open ──the volume failed──► paused: writes are refused for a while ──► open
  └──damaged, or the volume is gone──► broken: reads miss; the next write opens again ──► open
  └──► closed                          (a damaged database is emptied before that)

After an index that ended processes the database is emptied too, and nothing is stored until the next process opens it:
on a failing disk the new file would end engine after engine.
"""

import logging
from collections.abc import Callable
from functools import partial
from threading import RLock
from time import sleep
from typing import TypeVar

import lmdb

from adapters.lmdb import faults
from adapters.lmdb.compaction import Compaction
from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.entries import STATE_KEY, State
from adapters.lmdb.environment import ClosedError, Environment, SamePidError
from adapters.lmdb.faults import Damaged, FatalIndex, FaultLog, classify
from adapters.lmdb.probe import unreadable_of
from adapters.lmdb.writer import Writer
from application.ports.block_store import OpenFailure, StoreOpenError
from application.ports.clock import Clock

T = TypeVar("T")

FAILURES = (lmdb.Error, OSError, Damaged)

_logger = logging.getLogger("cairn.store")

# A file that is being written to may look wrong for as long as a commit takes.
_READ_ATTEMPTS, _READ_WAIT_S = 50, 0.02


class Containment:
    """The state of a store, and the guard of its calls. `lock` is held while the environment is replaced. `broken`: the
    fault that closed the database. `is_disk_suspect`: its index ended processes, so nothing is to be stored. Any
    thread."""

    def __init__(
        self,
        directory: StoreDirectory,
        environment: Environment,
        writer: Writer,
        compaction: Compaction,
        log: FaultLog,
        clock: Clock,
        *,
        read_only: bool,
        pause_s: float,
    ) -> None:
        """Opens nothing yet. `pause_s`: how long writes are refused after the volume failed."""
        self.lock = RLock()
        self.broken: str | None = None
        self.is_closed = self.is_disk_suspect = False
        self._directory = directory
        self._environment = environment
        self._writer = writer
        self._compaction = compaction
        self._log = log
        self._clock = clock
        self._read_only = read_only
        self._pause_s = pause_s
        self._paused_until_ns = 0

    @property
    def can_write(self) -> bool:
        return not self.is_closed and not self._read_only

    def read(self, work: Callable[[], T], otherwise: T) -> T:
        """Returns the result of `work`; `otherwise` where it fails, or the database is closed."""
        if self.is_closed or self.broken is not None:
            return otherwise
        try:
            return work()
        except ClosedError:
            return otherwise
        except FAILURES as failure:
            self.contain(failure)
            return otherwise

    def write(self, work: Callable[[], T], otherwise: T) -> T:
        """Returns the result of `work`; `otherwise` where it fails, or writes are paused. Opens a broken database."""
        if not self.can_write or self._clock.now_ns() < self._paused_until_ns:
            return otherwise
        try:
            self.repair()
            return work()
        except ClosedError:
            return otherwise
        except (*FAILURES, StoreOpenError) as failure:
            self.contain(failure)
            return otherwise

    def contain(self, failure: Exception) -> None:
        """Counts a failure and changes the state by its kind."""
        if isinstance(failure, StoreOpenError):
            kind = faults.VOLUME_GONE
        else:
            kind = faults.DISK_FULL if self._directory.is_full(failure) else classify(failure)
        self._log.note(kind, f"{self._directory.path}: {failure}")
        if kind in {faults.DAMAGED, faults.VOLUME_GONE} or isinstance(failure, lmdb.PanicError):
            self.broken = kind
        if kind not in {faults.DAMAGED, faults.MAP_FULL}:  # a full file is full for this write; the volume is fine
            self._paused_until_ns = self._clock.now_ns() + int(self._pause_s * 1e9)

    def repair(self) -> None:
        """Opens a broken database again. Raises StoreOpenError, and it stays broken, when the volume is not back."""
        if self.broken is None:
            return
        with self.lock:
            self._reopen(self.broken)

    def _reopen(self, broken: str | None) -> None:
        if broken is None or self.is_closed:
            return
        self._environment.close()
        if broken == faults.DAMAGED:
            self._directory.empty()
        self._directory.release()
        self.open()
        self.broken = None

    def note_replaced(self) -> None:
        """Notes that the environment was replaced: if it is not open, the next write opens it."""
        if not self._environment.is_open:
            self.broken = self.broken or faults.VOLUME_GONE

    def open(self) -> None:
        """Opens the store without scanning it. To write, claims the folder and empties a damaged database; to read,
        changes nothing. Raises StoreOpenError."""
        if self._read_only:
            return self._open_for_reading()
        directory, log = self._directory, self._log
        if opened := directory.claim():
            _logger.warning("%s was open to other users and is closed to them: %s", directory.path, ", ".join(opened))
        try:
            if (number := directory.renew()) is not None:
                log.note(faults.OLDER, f"{directory.path} was of an earlier version (format {number}) and is emptied")
            self._open_or_replace()
            # The names created just now, or by a process that was killed before this point.
            directory.sync()
        except (StoreOpenError, *FAILURES) as failure:
            self._environment.close()
            directory.release()
            raise self._open_error(failure, f"{directory.path} cannot be opened") from None
        self._writer.note_gone(None)
        return None

    def _open_for_reading(self) -> None:
        directory, environment = self._directory, self._environment
        directory.recognise()
        for attempt in range(_READ_ATTEMPTS):
            if not directory.size_bytes:
                raise StoreOpenError(OpenFailure.VOLUME, f"there is no database in {directory.path} yet")
            try:
                environment.open()
                return self._read_state()
            except FAILURES as failure:
                environment.close()
                is_damaged = classify(failure) == faults.DAMAGED
                if not is_damaged or attempt + 1 == _READ_ATTEMPTS or not directory.is_written_elsewhere():
                    raise self._open_error(failure, f"{directory.path} cannot be read") from None
                sleep(_READ_WAIT_S)
        return None

    def _open_or_replace(self) -> None:
        directory, environment, log = self._directory, self._environment, self._log
        try:
            unreadable = environment.notes.begin(partial(unreadable_of, directory.path))
            environment.open()
            self._read_state()
            for record_id in unreadable:
                name = self._writer.quarantine(record_id)
                log.note(faults.UNREADABLE, f"{directory.path}: {name} cannot be read from the disk")
            self._compaction.fit()
        except (Damaged, lmdb.Error) as failure:
            if classify(failure) != faults.DAMAGED:
                raise
            self.is_disk_suspect = isinstance(failure, FatalIndex)
            then = ", and nothing is stored until the next start: check the disk" if self.is_disk_suspect else ""
            log.note(faults.DAMAGED, f"{directory.path}: {failure}; emptied{then}")
            environment.close()
            directory.empty()
            environment.notes.clear()
            environment.open()

    def _read_state(self) -> None:
        with self._environment.reading() as txn:
            if (value := txn.get(STATE_KEY, db=self._environment.trees.sys)) is not None:
                State.unpack(value)

    def _open_error(self, failure: Exception, what: str) -> StoreOpenError:
        if isinstance(failure, StoreOpenError):
            return failure
        if isinstance(failure, SamePidError):
            return StoreOpenError(OpenFailure.BUSY, f"{self._directory.path}: {failure.strerror}")
        is_damaged = self._read_only and classify(failure) == faults.DAMAGED
        return StoreOpenError(OpenFailure.DAMAGED if is_damaged else OpenFailure.VOLUME, f"{what}: {failure}")
