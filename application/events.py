"""What happens in the engine, as typed facts. Times are monotonic nanoseconds from the Clock port.

Emitted to the EventSink; telemetry derives spans, metrics and logs from them, and nothing else knows of telemetry.
Plain values without any text of a prompt or an answer. Requests are told of choice by choice, by the choice's id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from application.answer_events import AnswerParsed
from application.cache_events import CacheMeasured, RecordsOffered, RecordsRead
from application.health_events import EngineRecovered, EngineRestarted, EngineStuck, ReadinessMeasured
from application.memory_events import MemoryMeasured, PressureRelieved
from application.token_events import TokensReceived
from domain.explanation import Explanation
from domain.ids import NOBODY, ModelId, RequestId
from domain.record import BlockKey, Record
from domain.request import Usage
from domain.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestQueued:
    """`model`: the id of the model that serves it; `requested_model`: the name the client sent. `max_tokens`: what the
    client set. `client`: the name of its key, empty for none. `rewrites`: rules that changed its prompt. `operation`:
    by which it came, as in the OpenAPI document; empty for none. `priority`: a Priority value."""

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
    rewrites: tuple[str, ...] = ()
    operation: str = ""
    priority: str = ""


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
class RequestEnded:
    """`reason`: a FinishReason value or `error`; the error's code and message are set with the latter."""

    id: RequestId
    reason: str
    usage: Usage
    at_ns: int
    error_code: str | None = None
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallProblems:
    """Calls of an answer that whoever runs them cannot run as they are. `kinds`: ProblemKind values, one a call."""

    id: RequestId
    kinds: tuple[str, ...]
    at_ns: int


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
class HttpRefused:
    """A connection or a request that was turned away, or cut off, before its body was looked at; or for what its key
    does not allow. `reason` is one of a few codes; `detail` may hold what a client sent, made harmless and short."""

    reason: str
    detail: str
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted:
    """One engine step: how many sequences waited and ran, and what it computed."""

    num_waiting: int
    num_running: int
    num_prefill_tokens: int
    num_decode_tokens: int
    started_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoaded:
    """`active_bytes`: what the compute backend holds afterwards, over all models."""

    id: ModelId
    duration_ns: int
    weight_bytes: int
    decode_mode: str
    note: str
    at_ns: int
    active_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelUnloaded:
    """`active_bytes` as in ModelLoaded."""

    id: ModelId
    at_ns: int
    active_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FaultObserved:
    """Something failed and was contained. `where` is a stable name such as `engine.step`."""

    where: str
    message: str
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsPersisted:
    """A batch is in the store. `raw_bytes` before encoding; `queued_bytes` is what still waits. `id`: whose records
    these are, empty for nobody's; they were offered at `offered_ns` (0: unknown) and written from `started_ns` on."""

    num_records: int
    raw_bytes: int
    queued_bytes: int
    started_ns: int
    at_ns: int
    offered_ns: int = 0
    id: RequestId = NOBODY


@dataclass(frozen=True, slots=True)
class RecordsDropped:
    """Records that will not be stored. `reason`: queue_full, orphan, full, unavailable, failed or shutdown. `id`: whose
    they are, empty for nobody's. `was_offered`: whether RecordsOffered told of them."""

    num_records: int
    raw_bytes: int
    reason: str
    at_ns: int
    id: RequestId = NOBODY
    was_offered: bool = True


@dataclass(frozen=True, slots=True)
class RecordsEvicted:
    """Leaves that made room, or that nobody used for too long: `reason` is `room` or `age`."""

    num_records: int
    at_ns: int
    reason: str = "room"


@dataclass(frozen=True, slots=True)
class StoreFault:
    """The first fault of its kind since the store was opened; later ones are only counted. Kinds: store-format.md."""

    kind: str
    message: str
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


Event: TypeAlias = (
    RequestQueued
    | RequestWaits
    | RequestAdmitted
    | RequestPreempted
    | PrefillChunkComputed
    | DecodeStarted
    | FirstToken
    | RequestEnded
    | RequestRefused
    | HttpRefused
    | StepCompleted
    | ModelLoaded
    | ModelUnloaded
    | FaultObserved
    | RecordsPersisted
    | RecordsDropped
    | RecordsEvicted
    | StoreFault
    | PrefixMatched
    | PrefixAwaited
    | StateRestored
    | StateCaptured
    | ToolCallProblems
    | MemoryMeasured
    | PressureRelieved
    | TokensReceived
    | CacheMeasured
    | RecordsOffered
    | RecordsRead
    | AnswerParsed
    | EngineStuck
    | EngineRecovered
    | ReadinessMeasured
    | EngineRestarted
)

__all__ = (
    "DecodeStarted",
    "EngineRecovered",
    "EngineRestarted",
    "EngineStuck",
    "Event",
    "FaultObserved",
    "FirstToken",
    "HttpRefused",
    "ModelLoaded",
    "ModelUnloaded",
    "PrefillChunkComputed",
    "PrefixAwaited",
    "PrefixMatched",
    "RecordsDropped",
    "RecordsEvicted",
    "RecordsPersisted",
    "RequestAdmitted",
    "RequestEnded",
    "RequestPreempted",
    "RequestQueued",
    "RequestRefused",
    "RequestWaits",
    "StateCaptured",
    "StateRestored",
    "StepCompleted",
    "StoreFault",
    "ToolCallProblems",
)
