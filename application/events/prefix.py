"""Telemetry events of the prefix cache: lookups, restores, captures; see `application/events`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from domain.ids import RequestId
from domain.prefix.explanation import Explanation
from domain.prefix.record import BlockKey, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatched:
    """A lookup's outcome: tokens reused by tier (tiers that gave none are left out), and why no more (a StopReason
    value). `num_known`: tokens whose blocks are in some tier. `diverged_at`: the first token that differs from what RAM
    holds, None if that is unknown.
    """

    id: RequestId
    num_prompt: int
    reused: Mapping[str, int]
    num_known: int
    reason: str
    started_ns: int
    at_ns: int
    diverged_at: int | None = None

    @classmethod
    def of(cls, id: RequestId, told: Explanation, started_ns: int, at_ns: int) -> "PrefixMatched":
        diverged_at = told.divergence.position if told.divergence is not None else None
        return cls(
            id=id,
            num_prompt=told.num_prompt,
            reused=told.reused,
            num_known=told.num_known,
            reason=told.reason.value,
            started_ns=started_ns,
            at_ns=at_ns,
            diverged_at=diverged_at,
        )


@dataclass(frozen=True, slots=True)
class PrefixAwaited:
    """The request waits for `owner`, which is computing the first `num_shared` tokens of its prompt."""

    id: RequestId
    owner: RequestId
    num_shared: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRestored:
    """A sequence was put at `position` from `size_bytes` of stored state, so much of each tier. From `started_ns` on it
    was fetched, from `fetched_ns` on it took the compute thread."""

    id: RequestId
    position: int
    size_bytes: int
    started_ns: int
    fetched_ns: int
    at_ns: int
    tier_bytes: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCaptured:
    """State copied out of a sequence on the compute thread."""

    id: RequestId
    num_blocks: int
    num_snapshots: int
    size_bytes: int
    started_ns: int
    at_ns: int

    @classmethod
    def of(cls, id: RequestId, records: Sequence[Record], started_ns: int, at_ns: int) -> "StateCaptured":
        num_blocks = sum(isinstance(record.key, BlockKey) for record in records)
        return cls(
            id=id,
            num_blocks=num_blocks,
            num_snapshots=len(records) - num_blocks,
            size_bytes=sum(record.raw_bytes for record in records),
            started_ns=started_ns,
            at_ns=at_ns,
        )
