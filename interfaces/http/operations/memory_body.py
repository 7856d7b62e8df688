"""The memory ledger as admins are shown it."""

from msgspec import Struct

from application.ports.engine import EngineStatus
from domain.memory.ledger import MemoryLimits, MemoryUse


class LimitsBody(Struct):
    """Up to `low_bytes` the process grows freely, above `high_bytes` it lets go of what it can, and nothing begins that
    would cross `hard_bytes`."""

    total_bytes: int
    low_bytes: int
    high_bytes: int
    hard_bytes: int


class HeldBody(Struct):
    """Bytes by purpose. `live`: states that ended sequences left for the next turn. `reading`: what was read to be used
    in fact; null when that was not needed."""

    weights: int
    states: int
    live: int
    hot: int
    queued: int
    in_flight: int
    other: int
    reading: int | None


class PromisedBody(Struct):
    """`growth`: of open sequences; `transient`: what the next step takes for a moment."""

    growth: int
    transient: int


class MemoryBody(Struct):
    """`limits` and `room_bytes` are null where nothing bounds it. `pressure`: calm, lean (the hot tier is smaller),
    paused (nobody is admitted), preempting or refusing. `waiting_for`: how many wait in the
    queue for `memory` or a `place`."""

    limits: LimitsBody | None
    used_bytes: int
    room_bytes: int | None
    pressure: str
    held: HeldBody
    promised: PromisedBody
    waiting_for: dict[str, int]


def memory_body(status: EngineStatus) -> MemoryBody | None:
    """None where the engine keeps no ledger."""
    ledger = status.ledger
    if ledger is None:
        return None
    limits = _limits(status.limits) if status.limits is not None else None
    promised = PromisedBody(ledger.growth_bytes, ledger.transient_bytes)
    return MemoryBody(
        limits,
        ledger.used_bytes,
        ledger.room_bytes,
        status.pressure,
        _held(ledger),
        promised,
        dict(status.waiting_for),
    )


def _limits(limits: MemoryLimits) -> LimitsBody:
    return LimitsBody(limits.total_bytes, limits.low_bytes, limits.high_bytes, limits.hard_bytes)


def _held(ledger: MemoryUse) -> HeldBody:
    return HeldBody(
        weights=ledger.weight_bytes,
        states=ledger.state_bytes,
        live=ledger.live_bytes,
        hot=ledger.hot_bytes,
        queued=ledger.queued_bytes,
        in_flight=ledger.flight_bytes,
        other=ledger.other_bytes,
        reading=ledger.reading_bytes,
    )
