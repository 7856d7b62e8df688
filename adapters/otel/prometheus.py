"""The body of `GET /metrics`: this process's meters in Prometheus' formats.

OpenTelemetry's own exporter, on a registry of its own so that two servers in one process do not mix, with the
process's figures (memory, file descriptors, start time) beside it.
"""

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from adapters.otel.telemetry import MetricsText


class PrometheusText:
    """`reader` belongs into one meter provider. Calling it renders the text; any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.reader = PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)

    def __call__(self, accept: str) -> MetricsText:
        """`accept`: the request's header; it decides between the text format and OpenMetrics."""
        encode, content_type = choose_encoder(accept)
        return MetricsText(encode(self._registry), content_type)


__all__ = ("PrometheusText",)
