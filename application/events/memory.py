"""Telemetry events of memory; see `application/events`."""

from dataclasses import dataclass

from domain.memory.ledger import MemoryUse


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMeasured:
    """What the computing process holds. `level`: of pressure, as `domain/memory/pressure` counts them."""

    ledger: MemoryUse
    level: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class PressureRelieved:
    """Something was done because memory is short, or is no longer: `kind` is one of ACTIONS. `num_bytes`: given back,
    or for `preempt` to be given back; 0 where it gives nothing back by itself."""

    kind: str
    num_bytes: int
    at_ns: int


ACTIONS = (
    *("clear_cache", "shrink_hot", "grow_hot"),
    *("pause", "resume", "preempt", "refuse"),
)
