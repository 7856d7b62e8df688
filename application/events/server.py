"""Telemetry events of the server: steps, models, faults, health, memory, and the tiers behind the prefix cache."""

from dataclasses import dataclass
from typing import TypeAlias

from domain.ids import NOBODY, ModelId, RequestId
from domain.memory.ledger import MemoryUse


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


@dataclass(frozen=True, slots=True)
class HttpRefused:
    """A connection or a request that was turned away, or cut off, before its body was looked at; or for what its key
    does not allow. `reason` is one of a few codes; `detail` may hold what a client sent, made harmless and short."""

    reason: str
    detail: str
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStuck:
    """The engine does not move, or the event loop does not: emitted when it is seen, and once a period while it lasts.

    `stuck_in` and `request_ids` as in `domain/engine_health`; `stack`: what the thread that hangs was doing, in lines
    of Python, without a value of any variable; empty where it cannot be had. `is_first`: it was not reported before.
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
    """The engine or loop that was stuck in `stuck_in` moves again, `stuck_ns` after it began to hang."""

    stuck_in: str
    stuck_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class ReadinessMeasured:
    """Whether a model is served and the engine moves, as `/health/ready` says. Told every few seconds."""

    is_ready: bool
    at_ns: int


@dataclass(frozen=True, slots=True)
class EngineRestarted:
    """The engine was lost, `down_ns` ago, and another one has taken over: `num_resumed` choices go on in it. `why`: how
    the last one ended; `num_tries`: how many were started until one came up."""

    why: str
    num_resumed: int
    down_ns: int
    num_tries: int
    at_ns: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReading:
    """How full a tier is. `name`: as in Explanation. `evicted`: records since the start."""

    name: str
    num_blocks: int
    num_snapshots: int
    used_bytes: int
    limit_bytes: int
    evicted: int


@dataclass(frozen=True, slots=True)
class CacheMeasured:
    """What the tiers hold, those that could be read, and what waits for the store, the oldest of it for `lag_s`. Told
    every few seconds while the server runs."""

    tiers: tuple[TierReading, ...]
    queued_bytes: int
    at_ns: int
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordsOffered:
    """Records of a request wait for the store from now on. Each of them is told of once more: RecordsPersisted or
    RecordsDropped, which a worker may tell first, unless somebody deletes it meanwhile."""

    id: RequestId
    num_records: int
    raw_bytes: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsRead:
    """One read of a store, whatever came of it. `raw_bytes`: decoded."""

    num_records: int
    raw_bytes: int
    started_ns: int
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


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """The store that another process had is ours to use, `waited_ns` after it could not be opened."""

    waited_ns: int
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
    | RecordsOffered
    | RecordsRead
    | RecordsPersisted
    | RecordsDropped
    | RecordsEvicted
    | StoreFault
    | StoreOpened
)
