"""Metrics of the prefix cache: lookups, restores, captures."""

from collections.abc import Mapping

from adapters.otel import catalogue
from adapters.otel import semconv as names
from adapters.otel.instruments import Instruments
from application.events import PrefixAwaited, PrefixMatched, StateCaptured, StateRestored
from application.services.event_router import Handler


class CacheMetrics:
    """One caller at a time. Tokens by origin are counted with the requests."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments

    def handlers(self) -> Mapping[type, Handler]:
        return {
            PrefixMatched: self._matched,
            PrefixAwaited: self._awaited,
            StateRestored: self._restored,
            StateCaptured: self._captured,
        }

    def _matched(self, event: PrefixMatched) -> None:
        self._instruments.add(catalogue.PREFIX_LOOKUPS, 1, {names.CAIRN_STOP_REASON: event.reason})
        self._instruments.record(catalogue.PREFIX_LOOKUP_TIME, (event.at_ns - event.started_ns) / 1e9, {})

    def _awaited(self, event: PrefixAwaited) -> None:
        self._instruments.add(catalogue.PREFIX_AWAITED, 1, {})

    def _restored(self, event: StateRestored) -> None:
        self._instruments.record(catalogue.RESTORE_TIME, (event.at_ns - event.started_ns) / 1e9, {})
        self._instruments.add(catalogue.RESTORED, event.size_bytes, {})

    def _captured(self, event: StateCaptured) -> None:
        self._instruments.record(catalogue.CAPTURE_TIME, (event.at_ns - event.started_ns) / 1e9, {})
        self._instruments.add(catalogue.CAPTURED, event.size_bytes, {})


__all__ = ("CacheMetrics",)
