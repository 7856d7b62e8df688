"""Metrics of the engine's health: whether it is ready, what is stuck now and has been, how often it was lost."""

from collections.abc import Mapping

from adapters.otel import semconv as names
from adapters.otel.metrics.instruments import Instruments
from adapters.otel.metrics.metric_spec import counter, gauge
from application.events import EngineRecovered, EngineRestarted, EngineStuck
from application.events.health import ReadinessMeasured
from application.services.event_router import Handler

READY = gauge(names.CAIRN_READY, "1", "1 while a model is served and the engine moves, as /health/ready says, else 0.")
ENGINE_STUCK = gauge(
    names.CAIRN_ENGINE_STUCK, "{thread}", "What does not move now: 0 nothing, 1 the engine or the event loop, 2 both."
)
ENGINE_WEDGES = counter(
    names.CAIRN_ENGINE_WEDGES,
    "{wedge}",
    "Times something was seen to be stuck, by in what: prefill, decode, load, waiting, ended, event loop, ...",
    names.CAIRN_KIND,
)
ENGINE_RESTARTS = counter(names.CAIRN_ENGINE_RESTARTS, "{restart}", "Engines that took over from one that was lost.")

METRICS = (
    READY,
    ENGINE_STUCK,
    ENGINE_WEDGES,
    ENGINE_RESTARTS,
)


class HealthMetrics:
    """One caller at a time."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._stuck_in: set[str] = set()
        self._is_ready = False
        instruments.observe(READY, lambda: [(int(self._is_ready), {})])
        instruments.observe(ENGINE_STUCK, lambda: [(len(self._stuck_in), {})])

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
            self._instruments.add(ENGINE_WEDGES, 1, {names.CAIRN_KIND: event.stuck_in})

    def _measured(self, event: ReadinessMeasured) -> None:
        self._is_ready = event.is_ready

    def _recovered(self, event: EngineRecovered) -> None:
        self._stuck_in.discard(event.stuck_in)

    def _restarted(self, event: EngineRestarted) -> None:
        self._instruments.add(ENGINE_RESTARTS, 1, {})
