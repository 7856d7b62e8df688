"""Metrics of the prefix cache: how long restores take and how much they restore."""

from collections.abc import Mapping

from adapters.otel import semconv as names
from adapters.otel.metrics.instruments import Instruments
from adapters.otel.metrics.metric_spec import STEP_BUCKETS, counter, histogram
from adapters.otel.trace_lookup import TraceLookup
from application.events import StateRestored
from application.services.event_router import Handler

RESTORE_TIME = histogram(names.CAIRN_RESTORE_TIME, "s", "From fetching state to restored.", STEP_BUCKETS)
RESTORED = counter(names.CAIRN_RESTORED, "By", "Bytes of state restored, by tier.", names.CAIRN_TIER)

METRICS = (
    RESTORE_TIME,
    RESTORED,
)


class CacheMetrics:
    """One caller at a time. Tokens by origin, and what lookups found, are counted with the requests."""

    def __init__(self, instruments: Instruments, trace_of: TraceLookup) -> None:
        self._instruments = instruments
        self._trace_of = trace_of

    def handlers(self) -> Mapping[type, Handler]:
        return {
            StateRestored: self._restored,
        }

    def _restored(self, event: StateRestored) -> None:
        seconds = (event.at_ns - event.started_ns) / 1e9
        self._instruments.record(RESTORE_TIME, seconds, {}, self._trace_of(event.id))
        for tier, num_bytes in event.tier_bytes.items():
            self._instruments.add(RESTORED, num_bytes, {names.CAIRN_TIER: tier})
