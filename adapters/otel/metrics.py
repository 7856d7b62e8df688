"""The metrics of the catalogue, fed from events through an OpenTelemetry meter.

Exporters and `GET /metrics` read the same instruments. Gauges are not counted up and down but read from what is open
when metrics are collected, so that they cannot drift. A new family of events is a class with `handlers`, added here.
"""

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import Meter

from adapters.otel import catalogue
from adapters.otel import semconv as names
from adapters.otel.cache_metrics import CacheMetrics
from adapters.otel.engine_metrics import EngineMetrics
from adapters.otel.health_metrics import HealthMetrics
from adapters.otel.instruments import Attributes, Instruments
from adapters.otel.memory_metrics import MemoryMetrics
from adapters.otel.request_metrics import RequestMetrics
from application.events import Event, ModelLoaded
from application.services.event_router import EventRouter, Handler


def _no_failures() -> Mapping[str, int]:
    return {}


class MetricEvents:
    """An EventSink. `other_failures`: events that other sinks could not take, by type, to be counted with its own."""

    def __init__(self, meter: Meter, other_failures: Callable[[], Mapping[str, int]] = _no_failures) -> None:
        instruments = Instruments(meter)
        requests, engine = RequestMetrics(instruments), EngineMetrics(instruments)
        families = (requests, engine, CacheMetrics(instruments), MemoryMetrics(instruments), HealthMetrics(instruments))
        handlers: dict[type, Handler] = {kind: found for one in families for kind, found in one.handlers().items()}
        note_loaded = handlers[ModelLoaded]

        def loaded(event: ModelLoaded) -> None:
            requests.loaded(event)
            note_loaded(event)

        handlers[ModelLoaded] = loaded
        self._router = EventRouter("metrics", handlers)
        self._other_failures = other_failures
        instruments.observe(catalogue.TELEMETRY_FAILURES, self._read_failures)

    def emit(self, event: Event) -> None:
        self._router.emit(event)

    def failures(self) -> Mapping[str, int]:
        """Events it could not take, by type. Any thread."""
        return self._router.failures()

    def _read_failures(self) -> Iterable[tuple[float, Attributes]]:
        totals = dict(self._router.failures())
        for name, count in self._other_failures().items():
            totals[name] = totals.get(name, 0) + count
        return [(count, {names.CAIRN_EVENT: name}) for name, count in totals.items()]


__all__ = ("MetricEvents",)
