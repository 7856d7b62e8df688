"""Metrics of the engine's health: whether it is ready, what is stuck now and has been, how often it was lost."""

from collections.abc import Mapping

from adapters.otel import catalogue
from adapters.otel import semconv as names
from adapters.otel.instruments import Instruments
from application.events import EngineRecovered, EngineRestarted, EngineStuck
from application.health_events import ReadinessMeasured
from application.services.event_router import Handler


class HealthMetrics:
    """One caller at a time."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._stuck_in: set[str] = set()
        self._is_ready = False
        instruments.observe(catalogue.READY, lambda: [(int(self._is_ready), {})])
        instruments.observe(catalogue.ENGINE_STUCK, lambda: [(len(self._stuck_in), {})])

    def handlers(self) -> Mapping[type, Handler]:
        return {
            EngineStuck: self._stuck,
            EngineRecovered: self._recovered,
            EngineRestarted: self._restarted,
            ReadinessMeasured: self._measured,
        }

    def _stuck(self, event: EngineStuck) -> None:
        self._stuck_in.add(event.stuck_in)
        if event.is_first:
            self._instruments.add(catalogue.ENGINE_WEDGES, 1, {names.CAIRN_KIND: event.stuck_in})

    def _measured(self, event: ReadinessMeasured) -> None:
        self._is_ready = event.is_ready

    def _recovered(self, event: EngineRecovered) -> None:
        self._stuck_in.discard(event.stuck_in)

    def _restarted(self, event: EngineRestarted) -> None:
        self._instruments.add(catalogue.ENGINE_RESTARTS, 1, {})
        self._instruments.record(catalogue.ENGINE_DOWN_TIME, event.down_ns / 1e9, {})


__all__ = ("HealthMetrics",)
