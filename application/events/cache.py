"""Telemetry events of the tiers behind the prefix cache; see `application/events`."""

from dataclasses import dataclass

from domain.ids import NOBODY, RequestId


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
