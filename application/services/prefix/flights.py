"""State on its way to sequences that are not restored yet: charged before a read begins, until the state is restored.

    asked ──begin──► in flight (what it may take at most) ──landed──► (what the hot tier does not count) ──end──►

A sequence that only waits in the queue may fetch within a share, so that others' prefixes are there when their turn
comes and no more; one that is admitted may take what room there is, because nothing goes on without it. Whoever is
refused asks again in the next step. Compute thread only.
"""

from dataclasses import dataclass
from enum import Enum

from application.services.prefix.step_room import StepRoom
from domain.ids import SequenceId


class Leave(Enum):
    """NEVER: nobody is there whose end would make room, so it is computed instead."""

    GO = "go"
    WAIT = "wait"
    NEVER = "never"


@dataclass(slots=True)
class _Flight:
    """`span_bytes`: all that the sequence keeps from being evicted; `num_bytes`: what is counted nowhere else."""

    num_bytes: int
    span_bytes: int
    is_ahead: bool


@dataclass(frozen=True, slots=True)
class _Refusal:
    """`room`: the first one that had no `num_bytes`, by its number."""

    num_bytes: int
    room: int


class Flights:
    """Bounds, set before each step: `room`: what may begin in all; `ahead_bytes`: the share of those who wait in the
    queue; None: not bounded. `makes_room`: somebody computes whose end will make some."""

    def __init__(self, room: StepRoom | None = None) -> None:
        self.room = room or StepRoom()
        self.ahead_bytes: int | None = None
        self.makes_room = True
        self._flights: dict[SequenceId, _Flight] = {}
        self._refused: dict[SequenceId, _Refusal] = {}

    @property
    def held_bytes(self) -> int:
        """In flight, and not in the hot tier."""
        return sum(flight.num_bytes for flight in self._flights.values())

    @property
    def num_admitted(self) -> int:
        """Of sequences that do not wait in the queue."""
        return sum(not flight.is_ahead for flight in self._flights.values())

    @property
    def wanted_bytes(self) -> int:
        """What would let the smallest of those begin that are admitted and had to wait; 0: nobody does."""
        return min((refusal.num_bytes for refusal in self._refused.values()), default=0)

    def begin(self, id: SequenceId, num_bytes: int, span_bytes: int, *, is_ahead: bool) -> Leave:
        """Charge what is about to be read (`num_bytes`) or pinned beside it (with that, `span_bytes`), if it may be."""
        lacks_room = not self.room.has(num_bytes)
        if is_ahead:
            taken = sum(flight.span_bytes for flight in self._flights.values() if flight.is_ahead)
            if lacks_room or (self.ahead_bytes is not None and taken + span_bytes > self.ahead_bytes):
                return Leave.WAIT
        elif lacks_room:
            now = self.room.num_opened
            first = self._refused[id].room if id in self._refused else now
            self._refused[id] = _Refusal(max(1, num_bytes), first)
            is_hopeless = first < now and not self.makes_room and not self.num_admitted
            return Leave.NEVER if is_hopeless else Leave.WAIT
        self._refused.pop(id, None)
        self._flights[id] = _Flight(num_bytes, span_bytes, is_ahead)
        self.room.take(num_bytes)
        return Leave.GO

    def must_yield(self, id: SequenceId) -> bool:
        """Whether it was fetched for who still waits, and there is no share for those any more."""
        flight = self._flights.get(id)
        return flight is not None and flight.is_ahead and self.ahead_bytes == 0

    def admitted(self, id: SequenceId) -> None:
        """It waits in the queue no longer, and takes nothing of that share."""
        if (flight := self._flights.get(id)) is not None:
            flight.is_ahead = False

    def landed(self, id: SequenceId, num_bytes: int) -> None:
        """It has arrived, and so much of it is in no tier."""
        if (flight := self._flights.get(id)) is not None:
            flight.num_bytes = num_bytes

    def end(self, id: SequenceId) -> None:
        """Restored, or given up. Repeating it does nothing."""
        self._flights.pop(id, None)
        self._refused.pop(id, None)


__all__ = ("Flights", "Leave")
