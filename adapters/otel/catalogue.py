"""The metrics Cairn has, as data: one entry, one instrument. Buckets in seconds; units in UCUM, as OpenTelemetry asks.

Each family's stand beside what feeds them from events; requests' in a file of their own. The documentation, the
dashboard and the tests read all of them here, so a metric they name and nobody feeds is an error.
"""

from adapters.otel import (
    cache_metrics,
    engine_metrics,
    health_metrics,
    memory_metrics,
    request_catalogue,
    store_metrics,
)
from adapters.otel import semconv as names
from adapters.otel.metric_spec import observed_counter

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

__all__ = ("CATALOGUE", "TELEMETRY_FAILURES")
