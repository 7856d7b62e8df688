"""Telemetry events of the server: steps, models, faults, health, memory, and the tiers behind the prefix cache."""

from dataclasses import dataclass
from typing import TypeAlias

from domain.ids import NO_REQUEST, ModelId, RequestId
from domain.memory.ledger import MemoryLedger
from domain.models.pace import BucketPaces


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted:
    """An engine step ended: the tokens that it computed."""

    num_prefill_tokens: int
    num_decode_tokens: int
    started_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoaded:
    """A model was loaded. `active_bytes`: memory of the compute backend afterwards, over all models. `pace`: of the
    description. `token_bytes`: of a token in the state of a sequence; 0 for unknown."""

    id: ModelId
    duration_ns: int
    weight_bytes: int
    decode_mode: str
    note: str
    at_ns: int
    active_bytes: int = 0
    pace: BucketPaces = ()
    token_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelUnloaded:
    """A model was unloaded. `active_bytes` as in ModelLoaded."""

    id: ModelId
    at_ns: int
    active_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FaultObserved:
    """A failure was contained. `where`: a stable name such as `engine.step`."""

    where: str
    message: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class HttpRefused:
    """A connection or request was refused or cut off before its body was read, or because of the limits of its key.
    `reason`: one of a few codes; `detail` may quote the client, shortened and without control codes."""

    reason: str
    detail: str
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStuck:
    """The engine or the event loop is stuck: emitted when it is detected, and once a period while it lasts.

    `stuck_in` and `request_ids` as in `domain/health/engine_health`; `stack`: the stack of the stuck thread, without
    values of variables; empty if it cannot be read. `is_first`: it was not reported before.
    """

    stuck_in: str
    since_ns: int
    num_waiting: int
    num_running: int
    num_calls: int
    at_ns: int
    request_ids: tuple[RequestId, ...] = ()
    stack: str = ""
    is_first: bool = True


@dataclass(frozen=True, slots=True)
class EngineRecovered:
    """The engine or event loop that was stuck in `stuck_in` makes progress again after `stuck_ns`."""

    stuck_in: str
    stuck_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class ReadinessMeasured:
    """The answer of `/health/ready`: True if a model is served and the engine makes progress. Emitted every few
    seconds."""

    is_ready: bool
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    """A call of a tool ended. `error_code`: of a DomainError, `tool_error` where the tool says that it failed, or
    `cancelled`; None for a success."""

    server: str
    tool: str
    error_code: str | None
    started_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class EngineRestarted:
    """The engine was lost `down_ns` ago and another one took over, in which `num_resumed` choices continue. `why`: the
    end of the lost one; `num_tries`: the number of starts until one succeeded."""

    why: str
    num_resumed: int
    down_ns: int
    num_tries: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMeasured:
    """The memory of the computing process. `level`: of pressure, as in `domain/memory/pressure`."""

    ledger: MemoryLedger
    level: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class PressureRelieved:
    """An action was taken because memory became short, or no longer is. `kind`: clear_cache, drop_features, drop_live,
    shrink_hot, grow_hot, pause, resume, preempt or refuse."""

    kind: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class TierReading:
    """The use of a tier. `name`: as in Explanation. `evicted`: records since the start."""

    name: str
    used_bytes: int
    limit_bytes: int
    evicted: int


@dataclass(frozen=True, slots=True)
class CacheMeasured:
    """The use of the tiers that could be read; the oldest record that waits for the store has waited for `lag_s`.
    `shared_available`: 1 while the shared store is asked, 0 while it is not, None without one. Emitted every few
    seconds."""

    tiers: tuple[TierReading, ...]
    at_ns: int
    lag_s: float = 0.0
    shared_available: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsPersisted:
    """A batch of records was stored. `raw_bytes`: before encoding. `id`: the request of
    the records, or empty; they were offered at `offered_ns` (0: unknown), and their write began at `started_ns`."""

    num_records: int
    raw_bytes: int
    started_ns: int
    at_ns: int
    offered_ns: int = 0
    id: RequestId = NO_REQUEST


@dataclass(frozen=True, slots=True)
class RecordsDropped:
    """Records will not be stored. `reason`: queue_full, orphan, full, unavailable, failed or shutdown. `id`: their
    request, or empty."""

    num_records: int
    reason: str
    at_ns: int
    id: RequestId = NO_REQUEST


@dataclass(frozen=True, slots=True)
class RecordsEvicted:
    """The store evicted leaves. `reason`: `room`, or `age` for records that were not used for too long."""

    num_records: int
    at_ns: int
    reason: str = "room"


@dataclass(frozen=True, slots=True)
class StoreFault:
    """The first fault of its kind since the store was opened; later ones are only counted. Kinds: store-format.md."""

    kind: str
    message: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class SharedStoreUsed:
    """A call of the shared store ended. `operation`: ask (what it has of a prompt), read or write. `outcome`: of ask,
    found, nothing, late or a failure; of read, read, missing, rejected (not authentic), late or a failure; of write,
    written, present (another server had written it), or the reason for which it was dropped. `num_bytes`: encoded."""

    operation: str
    outcome: str
    num_records: int
    num_bytes: int
    started_ns: int
    at_ns: int
    id: RequestId = NO_REQUEST


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """The store was opened, `waited_ns` after the first try failed."""

    waited_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class KvEventsSent:
    """A batch of KV events was sent. `outcome`: sent; lost, where a subscriber's queue was full and it got none;
    replayed, for an answer to a consumer that lost some or came late; unread, where that did not read it."""

    outcome: str
    num_subscribers: int
    at_ns: int


ServerEvent: TypeAlias = (
    HttpRefused
    | StepCompleted
    | ModelLoaded
    | ModelUnloaded
    | FaultObserved
    | EngineStuck
    | EngineRecovered
    | EngineRestarted
    | ReadinessMeasured
    | MemoryMeasured
    | PressureRelieved
    | CacheMeasured
    | RecordsPersisted
    | RecordsDropped
    | RecordsEvicted
    | StoreFault
    | SharedStoreUsed
    | KvEventsSent
    | StoreOpened
    | ToolCalled
)
