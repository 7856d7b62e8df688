"""Metrics of the tiers behind the prefix cache: how full they are, what is written, read, dropped and let go."""

from collections import Counter
from collections.abc import Iterable, Mapping

from adapters.otel import semconv as names
from adapters.otel.metrics.instruments import Attributes, Instruments
from adapters.otel.metrics.metric_spec import LAG_BUCKETS, counter, gauge, histogram, observed_counter
from application.events import RecordsDropped, RecordsEvicted, RecordsPersisted
from application.events.cache import CacheMeasured, RecordsRead, TierReading
from application.services.event_router import Handler

CACHE_USED = gauge(names.CAIRN_CACHE_USED, "By", "Bytes that a tier holds, as they lie there.", names.CAIRN_TIER)
CACHE_LIMIT = gauge(
    names.CAIRN_CACHE_LIMIT, "By", "Bytes that a tier may hold: the hot tier's budget, the quota.", names.CAIRN_TIER
)
CACHE_EVICTED = observed_counter(
    names.CAIRN_CACHE_EVICTED,
    "{record}",
    "Records that a tier let go, to have room or for their age.",
    names.CAIRN_TIER,
    names.CAIRN_REASON,
)
STORE_RECORDS = counter(
    names.CAIRN_STORE_RECORDS,
    "{record}",
    "Blocks and snapshots by outcome: persisted, or dropped with the reason.",
    names.CAIRN_OUTCOME,
    names.CAIRN_REASON,
)
STORE_WRITTEN = counter(names.CAIRN_STORE_WRITTEN, "By", "Bytes persisted, before encoding.")
STORE_LAG = gauge(names.CAIRN_STORE_LAG, "s", "How long the oldest state that waits for the store has waited.")
STORE_WRITE_LAG = histogram(
    names.CAIRN_STORE_WRITE_LAG, "s", "From state being captured to its being in the store.", LAG_BUCKETS
)
STORE_READ = counter(names.CAIRN_STORE_READ, "By", "Bytes read from the store, decoded.")

METRICS = (
    CACHE_USED,
    CACHE_LIMIT,
    CACHE_EVICTED,
    STORE_RECORDS,
    STORE_WRITTEN,
    STORE_LAG,
    STORE_WRITE_LAG,
    STORE_READ,
)

_STORE, _ROOM = "store", "room"


class StoreMetrics:
    """One caller at a time."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._lag_s = 0.0
        self._tiers: tuple[TierReading, ...] = ()
        self._evicted: Counter[str] = Counter()
        instruments.observe(STORE_LAG, lambda: [(self._lag_s, {})])
        instruments.observe(CACHE_USED, lambda: [(tier.used_bytes, _of(tier)) for tier in self._tiers])
        instruments.observe(CACHE_LIMIT, lambda: [(tier.limit_bytes, _of(tier)) for tier in self._tiers])
        instruments.observe(CACHE_EVICTED, self._read_evicted)

    def handlers(self) -> Mapping[type, Handler]:
        return {
            CacheMeasured: self._measured,
            RecordsPersisted: self._persisted,
            RecordsDropped: self._dropped,
            RecordsEvicted: self._evict,
            RecordsRead: self._read,
        }

    def _measured(self, event: CacheMeasured) -> None:
        self._tiers, self._lag_s = event.tiers, event.lag_s

    def _persisted(self, event: RecordsPersisted) -> None:
        self._count_records(event.num_records, "persisted")
        self._instruments.add(STORE_WRITTEN, event.raw_bytes, {})
        if event.offered_ns:
            self._instruments.record(STORE_WRITE_LAG, (event.at_ns - event.offered_ns) / 1e9, {})

    def _dropped(self, event: RecordsDropped) -> None:
        self._count_records(event.num_records, "dropped", event.reason)

    def _evict(self, event: RecordsEvicted) -> None:
        self._evicted[event.reason] += event.num_records

    def _read(self, event: RecordsRead) -> None:
        self._instruments.add(STORE_READ, event.raw_bytes, {})

    def _count_records(self, num_records: int, outcome: str, reason: str = "") -> None:
        attributes = {names.CAIRN_OUTCOME: outcome, **({names.CAIRN_REASON: reason} if reason else {})}
        self._instruments.add(STORE_RECORDS, num_records, attributes)

    def _read_evicted(self) -> Iterable[tuple[float, Attributes]]:
        """Stores say why; memory only ever makes room."""
        for tier in self._tiers:
            if tier.name != _STORE:
                yield tier.evicted, {**_of(tier), names.CAIRN_REASON: _ROOM}
        for reason, count in dict(self._evicted).items():
            yield count, {names.CAIRN_TIER: _STORE, names.CAIRN_REASON: reason}


def _of(tier: TierReading) -> dict[str, str]:
    return {names.CAIRN_TIER: tier.name}
