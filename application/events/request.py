"""Telemetry events of requests: from the queue to the end, with lookups, restores and captures of their prefix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from domain.ids import ModelId, RequestId
from domain.prefix.explanation import Explanation
from domain.prefix.record import BlockKey, Record
from domain.request.request import Usage
from domain.request.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestQueued:
    """`model`: the id of the model that serves it; `requested_model`: the name the client sent. `max_tokens`: what the
    client set. `client`: the name of its key, empty for none. `operation`:
    by which it came, as in the OpenAPI document; empty for none. `priority`: a Priority value. `choice`: which of the
    request's choices, from 0; it is the first whose lookup counts as the request's."""

    id: RequestId
    model: ModelId
    requested_model: ModelId
    is_chat: bool
    num_prompt_tokens: int
    at_ns: int
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    num_stop_strings: int = 0
    trace_carrier: Mapping[str, str] = field(default_factory=dict[str, str])
    client: str = ""
    operation: str = ""
    priority: str = ""
    choice: int = 0


@dataclass(frozen=True, slots=True)
class RequestWaits:
    """What it waits for in the queue from now on. `reason`: a WaitReason value."""

    id: RequestId
    reason: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class RequestAdmitted:
    """It left the queue: what is restored from here on is not waited for. Once more after each RequestPreempted."""

    id: RequestId
    at_ns: int


@dataclass(frozen=True, slots=True)
class RequestPreempted:
    """Its memory was needed, or its engine was lost. It waits for admission again, and then goes on from `num_tokens`,
    or computes again what was not kept of them."""

    id: RequestId
    num_tokens: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunkComputed:
    """`is_resumed`: after it was preempted, of its prompt and what it had put out."""

    id: RequestId
    start: int
    end: int
    started_ns: int
    at_ns: int
    is_resumed: bool = False


@dataclass(frozen=True, slots=True)
class DecodeStarted:
    id: RequestId
    at_ns: int


@dataclass(frozen=True, slots=True)
class FirstToken:
    id: RequestId
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsing:
    """How an answer was parsed. `family`: of the parser, empty where all is text. `busy_ns`: what parsing took of the
    event loop, between `started_ns` and `ended_ns`. `problems`: ProblemKind values of the calls that cannot be run as
    they are. `has_failed`: the parser raised, which ended the answer."""

    family: str
    num_calls: int
    problems: tuple[str, ...]
    busy_ns: int
    started_ns: int
    ended_ns: int
    has_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnded:
    """`reason`: a FinishReason value or `error`; the error's code and message are set with the latter. `parsing`: None
    where nothing was generated."""

    id: RequestId
    reason: str
    usage: Usage
    at_ns: int
    error_code: str | None = None
    error_message: str = ""
    parsing: Parsing | None = None


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """Turned away before it was queued. `started_ns`: when it was asked for; 0 if that is unknown."""

    model: ModelId
    error_code: str
    at_ns: int
    started_ns: int = 0
    is_chat: bool = True
    trace_carrier: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class TokensReceived:
    """Tokens that the engine handed over together, one event a step: how many of which choice."""

    counts: tuple[tuple[RequestId, int], ...]
    at_ns: int


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


RequestEvent: TypeAlias = (
    RequestQueued
    | RequestWaits
    | RequestAdmitted
    | RequestPreempted
    | PrefillChunkComputed
    | DecodeStarted
    | FirstToken
    | TokensReceived
    | RequestEnded
    | RequestRefused
    | PrefixMatched
    | PrefixAwaited
    | StateRestored
    | StateCaptured
)
