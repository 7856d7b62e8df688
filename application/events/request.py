"""Telemetry events of requests: from the queue to the end, with lookups, restores and captures of their prefix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from domain.ids import ModelId, RequestId
from domain.prefix.explanation import Explanation
from domain.prefix.record import BlockKey, Record
from domain.request.request import RequestKind, Usage
from domain.request.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestQueued:
    """A choice of a request entered the queue. `model`: the id of the model that serves it; `requested_model`: the name
    that the client sent. `max_tokens`: the client's limit. `client`: the name of its key, or empty. `operation`: its
    operation id in the OpenAPI document, or empty. `priority`: a Priority value. `choice`: its index in the request,
    from 0; the lookup of choice 0 counts as the lookup of the request. `num_prompt_tokens`: all texts together."""

    id: RequestId
    model: ModelId
    requested_model: ModelId
    kind: RequestKind
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
    """The reason for which the request waits in the queue changed. `reason`: a WaitReason value."""

    id: RequestId
    reason: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class RequestAdmitted:
    """The request left the queue; restoring counts as prefill. Emitted again after each RequestPreempted."""

    id: RequestId
    at_ns: int


@dataclass(frozen=True, slots=True)
class RequestPreempted:
    """The memory of the request was needed, or its engine was lost. It waits for admission again, then continues where
    it was, and recomputes what was not kept."""

    id: RequestId
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunkComputed:
    """A chunk of a prompt was computed. `is_resumed`: after a preemption, of the prompt and its output so far."""

    id: RequestId
    start: int
    end: int
    started_ns: int
    at_ns: int
    is_resumed: bool = False


@dataclass(frozen=True, slots=True)
class DecodeStarted:
    """The prompt is complete, and decoding begins."""

    id: RequestId
    at_ns: int


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The engine reported the first output token."""

    id: RequestId
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsing:
    """The parsing of an answer. `family`: the parser's family, empty for plain text. `busy_ns`: the time that parsing
    took of the event loop, between `started_ns` and `ended_ns`. `problems`: ProblemKind values of tool calls that
    cannot be run. `has_failed`: the parser raised, which ended the answer. `repeated_tokens`: the size of the pattern
    whose repetition ended the answer; 0 for none."""

    family: str
    num_calls: int
    problems: tuple[str, ...]
    busy_ns: int
    started_ns: int
    ended_ns: int
    has_failed: bool = False
    repeated_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnded:
    """The request ended. `reason`: a FinishReason value, or `error` with the error's code and message. `parsing`: None
    if nothing was generated."""

    id: RequestId
    reason: str
    usage: Usage
    at_ns: int
    error_code: str | None = None
    error_message: str = ""
    parsing: Parsing | None = None


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The request was refused before it was queued. `started_ns`: its arrival; 0 if unknown."""

    model: ModelId
    error_code: str
    at_ns: int
    started_ns: int = 0
    kind: RequestKind = RequestKind.CHAT
    trace_carrier: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class TokensReceived:
    """Tokens that the engine reported together, one event a step: counts by choice."""

    counts: tuple[tuple[RequestId, int], ...]
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatched:
    """The result of a lookup: tokens reused by tier (tiers without any are left out), and the StopReason value.
    `num_known`: tokens whose blocks are in some tier. `diverged_at`: the first token that differs from the blocks in
    memory, None if that is unknown."""

    id: RequestId
    num_prompt: int
    reused: Mapping[str, int]
    num_known: int
    reason: str
    started_ns: int
    at_ns: int
    diverged_at: int | None = None

    @classmethod
    def of(cls, id: RequestId, found: Explanation, started_ns: int, at_ns: int) -> "PrefixMatched":
        diverged_at = found.divergence.position if found.divergence is not None else None
        return cls(
            id=id,
            num_prompt=found.num_prompt,
            reused=found.reused,
            num_known=found.num_known,
            reason=found.reason.value,
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
    """A sequence was restored at `position` from `size_bytes` of state, `tier_bytes` of them by tier. Fetching began at
    `started_ns`, work on the compute thread at `fetched_ns`."""

    id: RequestId
    position: int
    size_bytes: int
    started_ns: int
    fetched_ns: int
    at_ns: int
    tier_bytes: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCaptured:
    """State was copied out of a sequence on the compute thread."""

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


@dataclass(frozen=True, slots=True)
class ImagesMatched:
    """The images of a prompt when the request was admitted, and their tokens; `num_reused` of these were restored."""

    id: RequestId
    num_images: int
    num_tokens: int
    num_reused: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSeen:
    """The model's tower passed over one image, of `num_tokens` in the prompt; its features have `size_bytes`."""

    id: RequestId
    num_tokens: int
    size_bytes: int
    started_ns: int
    at_ns: int


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
    | ImagesMatched
    | ImageSeen
)
