"""How long ago a record was last used, to the hour: the store's clock counts uses, and marks say when it stood where.

    sys tree, key "mark" || unix seconds u64 BE:   clock u64, check

A mark is made at most once an hour, and only where a maximum age is set. A record whose clock is not after a mark's was
last used before that mark. So all leaves up to the newest mark that is older than the maximum age are expired, the
oldest first; their parents follow, if they are as old. Before the first mark nothing is known, and nothing expires.
Where the machine's clock was set back, all marks are, so that what they say of each other's age stays true.
"""

from collections.abc import Callable
from struct import Struct, error

import lmdb

from adapters.lmdb.faults import Damaged
from adapters.lmdb.file.environment import Environment
from adapters.lmdb.format.rows import opened, sealed
from adapters.lmdb.index.ledger import Ledger
from adapters.lmdb.index.room import evict_while
from adapters.lmdb.index.writer import Writer
from application.ports.clock import Clock

MARK_EVERY_S = 3600
_LOOK_EVERY_S = 600.0
_PREFIX = b"mark"
_TIME = Struct(">Q")
_CLOCK = Struct("<Q")


class AgeLimit:
    """Held by the store. `step` whenever it writes; one transaction of bounded work, seldom."""

    def __init__(self, environment: Environment, writer: Writer, clock: Clock, max_age_s: int) -> None:
        self._environment = environment
        self._writer = writer
        self._clock = clock
        self._max_age_s = max_age_s
        self._next_ns = 0

    @property
    def is_due(self) -> bool:
        return self._clock.now_ns() >= self._next_ns

    def step(self) -> None:
        """Make a mark if it is time, and evict some of what has expired. Uses must be written before. Raises as writing
        does, MapFullError where a fragmented map refuses it."""
        # Before, so that what fails is not tried again with every write.
        self._next_ns = self._clock.now_ns() + int(_LOOK_EVERY_S * 1e9)
        if self._writer.transact(self._age):
            self._next_ns = 0  # there may be more: the next write goes on with it

    def _age(self, txn: "lmdb.Transaction[bytes]", ledger: Ledger, is_kept: Callable[[bytes], bool]) -> int:
        now_s = self._clock.unix_ns() // 1_000_000_000
        marks = self._marks(txn)
        ahead_s = marks[-1][0] - now_s if marks else 0
        if ahead_s > MARK_EVERY_S:
            for at, _ in marks:
                self._remove(txn, at)
            marks = sorted({max(0, at - ahead_s): clock for at, clock in marks}.items())
            for at, clock in marks:
                self._put(txn, at, clock)
        if not marks or now_s >= marks[-1][0] + MARK_EVERY_S:
            self._put(txn, now_s, ledger.clock)
        old = [(at, clock) for at, clock in marks if at <= now_s - self._max_age_s]
        for at, _ in old[:-1]:
            self._remove(txn, at)
        if not old:
            return 0
        last_clock = old[-1][1]
        return evict_while(ledger, is_kept, lambda clock: clock <= last_clock)

    def _marks(self, txn: "lmdb.Transaction[bytes]") -> list[tuple[int, int]]:
        """(unix seconds, clock), the oldest first. Raises Damaged."""
        found: list[tuple[int, int]] = []
        cursor = txn.cursor(self._environment.trees.sys)
        more = cursor.set_range(_PREFIX)
        while more and (key := cursor.key()).startswith(_PREFIX):
            try:
                found.append((_TIME.unpack(key[len(_PREFIX) :])[0], _CLOCK.unpack(opened(key, cursor.value()))[0]))
            except error:
                raise Damaged("a mark of time cannot be read") from None
            more = cursor.next()
        return found

    def _put(self, txn: "lmdb.Transaction[bytes]", at_s: int, clock: int) -> None:
        key = _PREFIX + _TIME.pack(at_s)
        txn.put(key, sealed(key, _CLOCK.pack(clock)), db=self._environment.trees.sys)

    def _remove(self, txn: "lmdb.Transaction[bytes]", at_s: int) -> None:
        txn.delete(_PREFIX + _TIME.pack(at_s), db=self._environment.trees.sys)
