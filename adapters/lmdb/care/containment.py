"""Trouble of a store kept inside: reads answer nothing, writes are refused, and each fault is counted by name.

open ──the volume failed──► paused: writes are refused for a while ──► open
  └──damaged, or the volume is gone──► broken: reads miss; the next write opens again ──► open
  └──► closed                          (a damaged database is emptied before that)
"""

from collections.abc import Callable
from threading import RLock
from typing import TypeVar

import lmdb

from adapters.lmdb import faults
from adapters.lmdb.faults import Damaged, FaultLog, classify
from adapters.lmdb.file.directory import StoreDirectory
from adapters.lmdb.file.environment import ClosedError, Environment
from application.ports.block_store import StoreOpenError
from application.ports.clock import Clock

T = TypeVar("T")

FAILURES = (lmdb.Error, OSError, Damaged)


class Containment:
    """Any thread. `lock` is held while the environment is replaced."""

    def __init__(
        self,
        directory: StoreDirectory,
        environment: Environment,
        log: FaultLog,
        clock: Clock,
        *,
        reopen: Callable[[], None],
        read_only: bool,
        pause_s: float,
    ) -> None:
        """`reopen` raises StoreOpenError. `pause_s`: how long writes rest after the volume failed."""
        self.lock = RLock()
        self.broken: str | None = None
        self.is_closed = False
        self._directory = directory
        self._environment = environment
        self._log = log
        self._clock = clock
        self._reopen = reopen
        self._read_only = read_only
        self._pause_s = pause_s
        self._paused_until_ns = 0

    @property
    def can_write(self) -> bool:
        return not self.is_closed and not self._read_only

    def read(self, work: Callable[[], T], otherwise: T) -> T:
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
        if isinstance(failure, lmdb.MapResizedError):
            return  # another process made the file larger; the next transaction sees it
        kind = faults.VOLUME_GONE if isinstance(failure, StoreOpenError) else classify(failure)
        # LMDB calls a write that was cut short an I/O error, whatever the reason.
        if kind == faults.IO_ERROR and self._directory.is_volume_full():
            kind = faults.DISK_FULL
        self._log.note(kind, f"{self._directory.path}: {failure}")
        if kind in {faults.DAMAGED, faults.VOLUME_GONE} or isinstance(failure, lmdb.PanicError):
            self.broken = kind
        if kind not in {faults.DAMAGED, faults.MAP_FULL}:  # a full file is full for this write; nothing ails the volume
            self._paused_until_ns = self._clock.now_ns() + int(self._pause_s * 1e9)

    def repair(self) -> None:
        """Open what is broken again. Raises StoreOpenError, and it stays broken, when the volume is not back."""
        if not self._is_broken():
            return
        with self.lock:
            broken = self.broken
            if broken is None or self.is_closed:
                return
            self._environment.close()
            if broken == faults.DAMAGED:
                self._directory.empty()
            self._directory.release()
            self._reopen()
            self.broken = None

    def _is_broken(self) -> bool:
        return self.broken is not None

    def note_lost(self) -> None:
        """After the environment was replaced: if it is not there, the next write opens it."""
        if not self._environment.is_open:
            self.broken = self.broken or faults.VOLUME_GONE
