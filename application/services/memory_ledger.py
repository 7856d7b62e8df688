"""One ledger of memory with one verb: whatever is about to hold memory reserves it first.

    reserve(purpose, bytes) ──► Lease: its bytes count until it ends
                            └─► Refused: nothing is held; ask again in the next step

    WEIGHTS     a model that is loaded; what is kept for later gives way to it
    FETCHES     a prefix on its way in, for a sequence that was admitted: nothing goes on without it
    AHEAD       the same for one that waits in the queue, within a share, and recalled while admission pauses
    SEQUENCES   a choice that is forked; from the next step on its state is counted by what it has computed
    LIVE        the copy of a state that is left for the next turn; from the next step on the live states count it

Room is what lies below the hard mark. It is opened before each step, and whatever begins in the step takes of it, so
that what each was allowed fits with what all others were. What was promised to those who are admitted in the step is
held in later ones, for which room is counted anew: fetches may begin in it, and what holds its bytes at once may not.

Compute thread only, but for `held_bytes`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Purpose(Enum):
    WEIGHTS = "weights"
    FETCHES = "fetches"
    AHEAD = "ahead"
    SEQUENCES = "sequences"
    LIVE = "live"


_STEP_ONLY = (Purpose.SEQUENCES, Purpose.LIVE)
_FETCHED = (Purpose.FETCHES, Purpose.AHEAD)


@dataclass(frozen=True, slots=True)
class Refused:
    """`room_bytes`: what there was for so many; less than was asked for. `is_final`: no sequence is there whose end
    would make room."""

    room_bytes: int
    is_final: bool = False


class Lease:
    """Bytes of one purpose. `num_bytes`: what is counted nowhere else; `span_bytes`: with what it pins beside that."""

    __slots__ = ("_ledger", "num_bytes", "purpose", "span_bytes")

    def __init__(self, ledger: "MemoryLedger", purpose: Purpose, num_bytes: int, span_bytes: int) -> None:
        self._ledger = ledger
        self.purpose = purpose
        self.num_bytes = num_bytes
        self.span_bytes = span_bytes

    @property
    def is_recalled(self) -> bool:
        """Whether it is to be ended: it was taken ahead of admission, and there is no share for that any more."""
        return self.purpose is Purpose.AHEAD and self._ledger.ahead_bytes == 0

    def resize(self, num_bytes: int) -> None:
        """So much of it is counted nowhere else by now."""
        self.num_bytes = num_bytes

    def admit(self) -> None:
        """Its sequence waits in the queue no longer."""
        if self.purpose is Purpose.AHEAD:
            self.purpose = Purpose.FETCHES

    def end(self) -> None:
        """Nothing is held for it any more. Idempotent."""
        self._ledger.end(self)


class MemoryLedger:
    """`room_bytes`: negative when more is promised than there is; None: not bounded. `ahead_bytes`: the share of those
    who wait in the queue; None: not bounded. `wanted_bytes`: what would let the smallest fetch begin that was refused
    since the last step; 0: none was."""

    def __init__(self) -> None:
        self.room_bytes: int | None = None
        self.ahead_bytes: int | None = None
        self.wanted_bytes = 0
        self._host_bytes: int | None = None
        self._promised_bytes = 0
        self._has_asked = self._makes_room = True
        self._leases: dict[int, Lease] = {}
        self._make_room: Callable[[int], int | None] = lambda _: None

    def make_room_with(self, make_room: Callable[[int], int | None]) -> None:
        """For weights of so many bytes: lets go of what is kept for later, if that is enough, and returns how much
        they may have; None: any amount."""
        self._make_room = make_room

    def open(
        self,
        room_bytes: int | None,
        ahead_bytes: int | None = None,
        host_bytes: int | None = None,
        *,
        makes_room: bool = True,
    ) -> None:
        """Before each step. `host_bytes`: room in the host's memory where that is another one: fetches pass through it.
        `makes_room`: sequences are computed whose end will make some."""
        self.room_bytes, self.ahead_bytes, self._makes_room = room_bytes, ahead_bytes, makes_room
        self._host_bytes = host_bytes
        self._has_asked = self.wanted_bytes > 0
        self.wanted_bytes = self._promised_bytes = 0

    def promise(self, num_bytes: int) -> None:
        """To those who are admitted in this step."""
        self._promised_bytes += num_bytes

    def reserve(self, purpose: Purpose, num_bytes: int, span_bytes: int = 0) -> Lease | Refused:
        """`span_bytes`: with what is pinned beside that. See the module docstring."""
        lease, room = Lease(self, purpose, num_bytes, max(num_bytes, span_bytes)), self._room(purpose, num_bytes)
        if purpose is Purpose.AHEAD and self.ahead_bytes is not None:
            taken = sum(held.span_bytes for held in self._leases.values() if held.purpose is purpose)
            if taken + lease.span_bytes > self.ahead_bytes:
                room = min(self.ahead_bytes - taken, num_bytes - 1)
        if room is not None and num_bytes > room:
            return Refused(room, is_final=self._note_refusal(purpose, num_bytes))
        if purpose is not Purpose.WEIGHTS and self.room_bytes is not None:
            self.room_bytes -= num_bytes
        if purpose in _FETCHED and self._host_bytes is not None:
            self._host_bytes -= num_bytes
        if purpose not in _STEP_ONLY:
            self._leases[id(lease)] = lease
        return lease

    def end(self, lease: Lease) -> None:
        """See `Lease.end`."""
        self._leases.pop(id(lease), None)

    def held_bytes(self, *purposes: Purpose) -> int:
        """Any thread."""
        return sum(lease.num_bytes for lease in tuple(self._leases.values()) if lease.purpose in purposes)

    def free_bytes(self) -> int | None:
        """What is left for one more model, once what is kept for later gave way; None: any amount."""
        return self._make_room(0)

    @property
    def num_fetches(self) -> int:
        """Of sequences that were admitted."""
        return sum(lease.purpose is Purpose.FETCHES for lease in self._leases.values())

    def _room(self, purpose: Purpose, num_bytes: int) -> int | None:
        if purpose is Purpose.WEIGHTS:
            return self._make_room(num_bytes)
        if purpose in _STEP_ONLY:
            return None if self.room_bytes is None else self.room_bytes - self._promised_bytes
        return min((room for room in (self.room_bytes, self._host_bytes) if room is not None), default=None)

    def _note_refusal(self, purpose: Purpose, num_bytes: int) -> bool:
        """Whether it is final: room was made for fetches since one was refused, as far as that goes."""
        if purpose is not Purpose.FETCHES:
            return False
        self.wanted_bytes = min(self.wanted_bytes or num_bytes, max(1, num_bytes))
        return self._has_asked and not self._makes_room and not self.num_fetches
