"""Telemetry events of the tiers behind the prefix cache; see `application/events`."""

from dataclasses import dataclass

from domain.ids import RequestId


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
    """What the tiers hold, those that could be read, and what waits for the store. Told every few seconds while the
    server runs."""

    tiers: tuple[TierReading, ...]
    queued_bytes: int
    at_ns: int


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
    """One read of a store, whatever came of it. `num_missing`: records that were not there. `raw_bytes`: decoded."""

    num_records: int
    num_missing: int
    raw_bytes: int
    started_ns: int
    at_ns: int


__all__ = ("CacheMeasured", "RecordsOffered", "RecordsRead", "TierReading")
