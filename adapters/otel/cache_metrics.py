"""Metrics of the prefix cache: lookups, restores, captures."""

from collections.abc import Mapping

from adapters.otel import catalogue
from adapters.otel import semconv as names
from adapters.otel.instruments import Instruments
from adapters.otel.trace_lookup import TraceLookup
from application.events import PrefixAwaited, PrefixMatched, StateCaptured, StateRestored
from application.services.event_router import Handler
from domain.explanation import StopReason

_TAKES_NO_PART = frozenset(
    reason.value for reason in (StopReason.UNSUPPORTED_LAYOUT, StopReason.DISABLED, StopReason.SCORED)
)


class CacheMetrics:
    """One caller at a time. Tokens by origin are counted with the requests."""

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
        found = {names.CAIRN_RESULT: _result(event), names.CAIRN_STOP_REASON: event.reason}
        self._instruments.add(catalogue.PREFIX_LOOKUPS, 1, found)
        seconds = (event.at_ns - event.started_ns) / 1e9
        self._instruments.record(catalogue.PREFIX_LOOKUP_TIME, seconds, {}, self._trace_of(event.id))

    def _awaited(self, event: PrefixAwaited) -> None:
        self._instruments.add(catalogue.PREFIX_AWAITED, 1, {})

    def _restored(self, event: StateRestored) -> None:
        seconds = (event.at_ns - event.started_ns) / 1e9
        self._instruments.record(catalogue.RESTORE_TIME, seconds, {}, self._trace_of(event.id))
        for tier, num_bytes in event.tier_bytes.items():
            self._instruments.add(catalogue.RESTORED, num_bytes, {names.CAIRN_TIER: tier})

    def _captured(self, event: StateCaptured) -> None:
        seconds = (event.at_ns - event.started_ns) / 1e9
        self._instruments.record(catalogue.CAPTURE_TIME, seconds, {}, self._trace_of(event.id))
        self._instruments.add(catalogue.CAPTURED, event.size_bytes, {})


def _result(event: PrefixMatched) -> str:
    if event.reason in _TAKES_NO_PART:
        return "off"
    if event.reason == StopReason.LAST_TOKEN.value:
        return "full"
    return "partial" if any(event.reused.values()) else "none"


__all__ = ("CacheMetrics",)
