"""The last state of an open database that is whole on the disk, and the reader that keeps its pages (`sync_point`).

    begin, between two commits ─► reach: synced, kept in the file ─► the last one; the reader of the one before ends

There is none in a database whose commits are synced, or that is only read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import lmdb

from adapters.lmdb.faults import Unsynced
from adapters.lmdb.sync_point import SyncPoint


@dataclass(frozen=True, slots=True)
class BegunPoint:
    """What may become the last point. `reader` sees the state that `headers` lead to."""

    reader: "lmdb.Transaction[bytes]"
    transaction: int
    headers: bytes


class LastPoint:
    """Any thread, but `forget` and `end` are for who has the database to itself."""

    def __init__(self, kept: SyncPoint, *, is_wanted: bool) -> None:
        self._kept = kept
        self._is_wanted = is_wanted
        self._lock = Lock()
        self._last: BegunPoint | None = None

    @property
    def transaction(self) -> int | None:
        """The last one that the point has; None: there is no point."""
        return None if (last := self._last) is None else last.transaction

    def open(self, env: lmdb.Environment, page_bytes: int) -> None:
        """Sync what is there, and make it the point before anybody commits, instead of one that an earlier life left.
        Raises what `reach` raises, Unsynced where there is that one; it is as it was then."""
        begun = self.begin(env, page_bytes)
        self.reach(begun, lambda: env.sync(True))
        if begun is None:
            self._kept.forget()

    def begin(self, env: lmdb.Environment, page_bytes: int) -> BegunPoint | None:
        """Nobody may commit meanwhile. What it returns goes to `reach`. None where no point is wanted."""
        if not self._is_wanted:
            return None
        headers = self._kept.headers(page_bytes)
        return BegunPoint(env.begin(), env.info()["last_txnid"], headers)

    def reach(self, begun: BegunPoint | None, sync: Callable[[], None]) -> None:
        """Sync what was committed, others may go on committing. Raises Unsynced when that fails, the last point is what
        it was then; what `sync` raises when there is none; or OSError.

        One at a time, so that no reader is left of a point before this one.
        """
        with self._lock:
            ended = begun
            try:
                if begun is not None and self._last is not None and self._last.transaction >= begun.transaction:
                    return
                self._sync(sync)
                if begun is not None:
                    before = self._last
                    if before is None:  # headers may be kept although keeping them failed: no later reader guards them
                        ended, self._last = None, begun
                    self._kept.keep(begun.headers)
                    ended, self._last = before, begun
            finally:
                if ended is not None:
                    ended.reader.abort()

    def forget(self) -> None:
        """Raises OSError, and the point stays whole."""
        if self._last is not None:
            self._kept.forget()
            self.end()

    def end(self) -> None:
        """Its reader, but not its file: nobody commits any more."""
        last, self._last = self._last, None
        if last is not None:
            last.reader.abort()

    def _sync(self, sync: Callable[[], None]) -> None:
        try:
            sync()
        except (lmdb.Error, OSError) as failure:
            if self._last is None and not self._kept.path.exists():
                raise
            code = failure.code if isinstance(failure, lmdb.Error) else failure.errno
            raise Unsynced(code, str(failure)) from None


__all__ = ("BegunPoint", "LastPoint")
