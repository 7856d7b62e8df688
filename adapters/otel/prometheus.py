"""The body of `GET /metrics`: the meters of this process in Prometheus' text format 0.0.4.

A registry of its own, so that two servers in one process do not mix, plus the process's own figures (memory, file
descriptors, start time).
"""

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest


class PrometheusText:
    """`reader` belongs into one meter provider. Calling it renders the text; any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.reader = PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)

    def __call__(self) -> bytes:
        return generate_latest(self._registry)


__all__ = ("PrometheusText",)
