"""What all sequences of one prefix cache share."""

from collections.abc import Callable
from dataclasses import dataclass

from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.lane import Lane
from application.services.prefix.flights import Flights
from application.services.prefix.in_flight import InFlight
from application.services.prefix.tiers import PrefixTiers
from domain.ids import SequenceId


@dataclass(frozen=True, slots=True)
class CacheContext:
    """`hashing`: hashes prompts. `open`: those that have not ended. `on_ready`: wakes the engine loop; called from
    workers. `flights`: charges what they fetch."""

    tiers: PrefixTiers
    clock: Clock
    events: EventSink
    hashing: Lane
    open: dict[SequenceId, InFlight]
    on_ready: Callable[[], None]
    flights: Flights


__all__ = ("CacheContext",)
