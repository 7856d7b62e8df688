"""The metrics Cairn has, as data (CATALOGUE: one entry, one instrument), fed from events through a meter.

Exporters and `GET /metrics` read the same instruments. Gauges are not counted up and down but read from what is open
when metrics are collected, so that they cannot drift. A new family of events is a module of METRICS and a class with
`handlers`, both named here: what nobody feeds is an error. Buckets are in seconds; units in UCUM.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from opentelemetry.metrics import Meter

from adapters.otel import semconv as names
from adapters.otel.metrics import cache as cache_metrics
from adapters.otel.metrics import engine as engine_metrics
from adapters.otel.metrics import health as health_metrics
from adapters.otel.metrics import memory as memory_metrics
from adapters.otel.metrics import request_catalogue
from adapters.otel.metrics import store as store_metrics
from adapters.otel.metrics.cache import CacheMetrics
from adapters.otel.metrics.engine import EngineMetrics
from adapters.otel.metrics.health import HealthMetrics
from adapters.otel.metrics.instruments import Attributes, Instruments
from adapters.otel.metrics.memory import MemoryMetrics
from adapters.otel.metrics.metric_spec import observed_counter
from adapters.otel.metrics.request import RequestMetrics
from adapters.otel.metrics.store import StoreMetrics
from adapters.otel.trace_lookup import TraceLookup, no_trace
from application.ports.clock import Clock
from application.services.event_router import EventRouter, Handler
from application.services.request_timelines import RequestTimelines

TELEMETRY_FAILURES = observed_counter(
    names.CAIRN_TELEMETRY_FAILURES, "{event}", "Events that telemetry could not take.", names.CAIRN_EVENT
)

CATALOGUE = (
    *request_catalogue.METRICS,
    *engine_metrics.METRICS,
    *health_metrics.METRICS,
    *cache_metrics.METRICS,
    *store_metrics.METRICS,
    *memory_metrics.METRICS,
    TELEMETRY_FAILURES,
)


def _no_failures() -> Mapping[str, int]:
    return {}


class MetricEvents(EventRouter):
    """An event sink; `timelines` takes each event before it. `other_failures`: events that other sinks could not take,
    by type, which are counted with its own. `trace_of`: a request's trace, while it is open."""

    def __init__(
        self,
        meter: Meter,
        clock: Clock,
        timelines: RequestTimelines,
        other_failures: Callable[[], Mapping[str, int]] = _no_failures,
        trace_of: TraceLookup = no_trace,
    ) -> None:
        instruments = Instruments(meter, CATALOGUE)
        families = (
            RequestMetrics(instruments, clock, timelines, trace_of),
            EngineMetrics(instruments),
            CacheMetrics(instruments, trace_of),
            StoreMetrics(instruments),
            MemoryMetrics(instruments),
            HealthMetrics(instruments),
        )
        super().__init__("metrics", _merged([family.handlers() for family in families]))
        self._other_failures = other_failures
        instruments.observe(TELEMETRY_FAILURES, self._read_failures)

    def _read_failures(self) -> Iterable[tuple[float, Attributes]]:
        totals = dict(self.failures())
        for name, count in self._other_failures().items():
            totals[name] = totals.get(name, 0) + count
        return [(count, {names.CAIRN_EVENT: name}) for name, count in totals.items()]


def _merged(tables: Sequence[Mapping[type, Handler]]) -> dict[type, Handler]:
    """One table, in which an event that several families take is handed to each."""
    found: dict[type, list[Handler]] = {}
    for table in tables:
        for kind, handler in table.items():
            found.setdefault(kind, []).append(handler)
    return {kind: handlers[0] if len(handlers) == 1 else _each(handlers) for kind, handlers in found.items()}


def _each(handlers: Sequence[Handler]) -> Handler:
    def handle(event: object) -> None:
        for handler in handlers:
            handler(event)

    return handle
