"""Leases of memory: memory is reserved before it is held.

    reserve(purpose, bytes) ──► Lease: its bytes count until it ends
                            └─► Refused: nothing is held; ask again in the next step

    WEIGHTS     a model that is loaded; hot prefixes and live states are evicted for it
    FETCHES     a prefix that is fetched for an admitted sequence, which cannot start without it
    AHEAD       the same for a queued sequence, within a share, and recalled while admission pauses
    LIVE        the copy of a state that is left for the next turn; from the next step on it counts as a live state

Room is the memory below the hard mark, by the ledger of all purposes (`domain/memory/ledger`). The guard opens it
before each step, and each reservation in the step takes from it, so that all of them fit together. The charges of
sequences that are admitted in the step are promised out of the room: they are held in later steps, before which the
guard counts anew. So a fetch, which is part of its sequence's charge, may use promised room; a state that exists at
once may not.

Compute thread only, except `held_bytes`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Purpose(Enum):
    WEIGHTS = "weights"
    FETCHES = "fetches"
    AHEAD = "ahead"
    LIVE = "live"


_FETCHED = (Purpose.FETCHES, Purpose.AHEAD)


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused reservation. `room_bytes`: the available room. `is_final`: no sequence runs whose end would make
    more."""

    room_bytes: int
    is_final: bool = False


class Lease:
    """The reserved bytes of one purpose. `num_bytes`: counted nowhere else. `span_bytes`: including what it pins."""

    __slots__ = ("_leases", "num_bytes", "purpose", "span_bytes")

    def __init__(self, leases: "MemoryLeases", purpose: Purpose, num_bytes: int, span_bytes: int) -> None:
        self._leases = leases
        self.purpose = purpose
        self.num_bytes = num_bytes
        self.span_bytes = span_bytes

    @property
    def is_recalled(self) -> bool:
        """The holder has to end it: it was taken ahead of admission, and the share for that is gone."""
        return self.purpose is Purpose.AHEAD and self._leases.ahead_bytes == 0

    def resize(self, num_bytes: int) -> None:
        """Sets the bytes that are counted nowhere else by now."""
        self.num_bytes = num_bytes

    def admit(self) -> None:
        """Turns a lease ahead of admission into one of an admitted sequence."""
        if self.purpose is Purpose.AHEAD:
            self.purpose = Purpose.FETCHES

    def end(self) -> None:
        """Releases the bytes. Idempotent."""
        self._leases.end(self)


class MemoryLeases:
    """The leases, and the room of one step. `room_bytes`: negative when more is promised than there is; None: not
    bounded. `ahead_bytes`: the share of queued sequences; None: not bounded. `wanted_bytes`: the smallest fetch
    that was refused since the last step; 0: none was."""

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
        """Registers the callable that makes room for weights: it evicts kept state where that frees enough for the
        given bytes, and returns the room; None: any amount."""
        self._make_room = make_room

    def open(
        self,
        room_bytes: int | None,
        ahead_bytes: int | None = None,
        host_bytes: int | None = None,
        *,
        makes_room: bool = True,
    ) -> None:
        """Opens the room of a step. `host_bytes`: room in the host's memory where that is separate, for fetches.
        `makes_room`: sequences run whose end will make some."""
        self.room_bytes, self.ahead_bytes, self._makes_room = room_bytes, ahead_bytes, makes_room
        self._host_bytes = host_bytes
        self._has_asked = self.wanted_bytes > 0
        self.wanted_bytes = self._promised_bytes = 0

    def promise(self, num_bytes: int) -> None:
        """Promises room to the sequences that are admitted in this step."""
        self._promised_bytes += num_bytes

    def reserve(self, purpose: Purpose, num_bytes: int, span_bytes: int = 0) -> Lease | Refused:
        """Reserves memory as the module docstring says. `span_bytes`: including what is pinned beside it."""
        lease, room = Lease(self, purpose, num_bytes, max(num_bytes, span_bytes)), self._room(purpose, num_bytes)
        if purpose is Purpose.AHEAD and self.ahead_bytes is not None:
            # Hot records that a fetch pins cannot be evicted meanwhile, so the share bounds them too.
            taken = sum(held.span_bytes for held in self._leases.values() if held.purpose is purpose)
            if taken + lease.span_bytes > self.ahead_bytes:
                room = min(self.ahead_bytes - taken, num_bytes - 1)
        if room is not None and num_bytes > room:
            return Refused(room, is_final=self._note_refusal(purpose, num_bytes))
        if purpose is not Purpose.WEIGHTS and self.room_bytes is not None:
            self.room_bytes -= num_bytes
        if purpose in _FETCHED and self._host_bytes is not None:
            self._host_bytes -= num_bytes
        if purpose is not Purpose.LIVE:
            self._leases[id(lease)] = lease
        return lease

    def end(self, lease: Lease) -> None:
        """Ends a lease, as `Lease.end`."""
        self._leases.pop(id(lease), None)

    def held_bytes(self, *purposes: Purpose) -> int:
        """Returns the bytes of all leases of these purposes. Any thread."""
        return sum(lease.num_bytes for lease in tuple(self._leases.values()) if lease.purpose in purposes)

    def free_bytes(self) -> int | None:
        """Returns the room for one more model after kept state was evicted; None: any amount."""
        return self._make_room(0)

    @property
    def num_fetches(self) -> int:
        """The number of fetches of admitted sequences."""
        return sum(lease.purpose is Purpose.FETCHES for lease in self._leases.values())

    def _room(self, purpose: Purpose, num_bytes: int) -> int | None:
        if purpose is Purpose.WEIGHTS:
            return self._make_room(num_bytes)
        if purpose is Purpose.LIVE:
            return None if self.room_bytes is None else self.room_bytes - self._promised_bytes
        return min((room for room in (self.room_bytes, self._host_bytes) if room is not None), default=None)

    def _note_refusal(self, purpose: Purpose, num_bytes: int) -> bool:
        """Returns whether a refusal is final: room was already made since another fetch was refused."""
        if purpose is not Purpose.FETCHES:
            return False
        # The guard makes room for the smallest one, with which the others' turn comes. Where the step after that
        # refuses one again, nothing is left to evict, and only the end of a sequence or of another fetch could make
        # more.
        self.wanted_bytes = min(self.wanted_bytes or num_bytes, max(1, num_bytes))
        return self._has_asked and not self._makes_room and not self.num_fetches
