"""Metrics of the prefix cache: lookups, restores, captures."""

from collections.abc import Mapping

from adapters.otel import semconv as names
from adapters.otel.buckets import STEP_BUCKETS
from adapters.otel.instruments import Instruments
from adapters.otel.metric_spec import counter, histogram
from adapters.otel.trace_lookup import TraceLookup
from application.events import PrefixAwaited, PrefixMatched, StateCaptured, StateRestored
from application.services.event_router import Handler

PREFIX_LOOKUP_TIME = histogram(
    names.CAIRN_PREFIX_LOOKUP_TIME, "s", "From looking a prefix up to what is reused being in place.", STEP_BUCKETS
)
PREFIX_AWAITED = counter(
    names.CAIRN_PREFIX_AWAITED, "{request}", "Requests that waited for another one computing the same prefix."
)
RESTORE_TIME = histogram(names.CAIRN_RESTORE_TIME, "s", "From fetching state to restored.", STEP_BUCKETS)
RESTORED = counter(names.CAIRN_RESTORED, "By", "Bytes of state restored, by tier.", names.CAIRN_TIER)
CAPTURE_TIME = histogram(names.CAIRN_CAPTURE_TIME, "s", "Time a capture took of the compute thread.", STEP_BUCKETS)
CAPTURED = counter(names.CAIRN_CAPTURED, "By", "Bytes of state captured.")

METRICS = (
    PREFIX_LOOKUP_TIME,
    PREFIX_AWAITED,
    RESTORE_TIME,
    RESTORED,
    CAPTURE_TIME,
    CAPTURED,
)


class CacheMetrics:
    """One caller at a time. Tokens by origin, and what lookups found, are counted with the requests."""

    def __init__(self, instruments: Instruments, trace_of: TraceLookup) -> None:
        self._instruments = instruments
        self._trace_of = trace_of

    def handlers(self) -> Mapping[type, Handler]:
        return {
            PrefixMatched: self._matched,
            PrefixAwaited: self._awaited,
            StateRestored: self._restored,
            StateCaptured: self._captured,
        }

    def _matched(self, event: PrefixMatched) -> None:
        seconds = (event.at_ns - event.started_ns) / 1e9
        self._instruments.record(PREFIX_LOOKUP_TIME, seconds, {}, self._trace_of(event.id))

    def _awaited(self, event: PrefixAwaited) -> None:
        self._instruments.add(PREFIX_AWAITED, 1, {})

    def _restored(self, event: StateRestored) -> None:
        seconds = (event.at_ns - event.started_ns) / 1e9
        self._instruments.record(RESTORE_TIME, seconds, {}, self._trace_of(event.id))
        for tier, num_bytes in event.tier_bytes.items():
            self._instruments.add(RESTORED, num_bytes, {names.CAIRN_TIER: tier})

    def _captured(self, event: StateCaptured) -> None:
        seconds = (event.at_ns - event.started_ns) / 1e9
        self._instruments.record(CAPTURE_TIME, seconds, {}, self._trace_of(event.id))
        self._instruments.add(CAPTURED, event.size_bytes, {})


__all__ = (
    "METRICS",
    "CacheMetrics",
)
