"""The body of `GET /metrics`: the meters and tallies of this process as Prometheus and OpenMetrics want them.

A registry of its own, so that two servers in one process do not mix, plus the process's own figures (memory, file
descriptors, start time). Names follow OpenTelemetry's rules for Prometheus: dots become underscores, units are appended
in full, counters end in `_total`, and what describes the server is `target_info`.

OpenMetrics, which a scraper asks for by `Accept`, also carries exemplars: which trace a bucket's last value is of. That
is why OpenTelemetry's own exporter is not used: it drops them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, cast

from opentelemetry.sdk.metrics.export import (
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtelMetric
from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Exemplar

from adapters.otel.tallies import TallyReading
from adapters.otel.telemetry import METRICS_CONTENT_TYPE, MetricsText

_UNITS = {"s": "seconds", "By": "bytes"}
_OTHER_CHARS = re.compile(r"[^a-zA-Z0-9_:]+")
_MEDIA_TYPE = "application/openmetrics-text"


class PrometheusText(MetricReader):
    """Belongs into one meter provider. Calling it renders the text; any thread."""

    def __init__(self, tallies: TallyReading) -> None:
        super().__init__()
        self._tallies = tallies
        self._data: MetricsData | None = None
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Families(self))

    def __call__(self, accept: str) -> MetricsText:
        """`accept`: the header of who asks."""
        if any(_wants_openmetrics(one) for one in accept.split(",")):
            return MetricsText(_openmetrics(self._registry), openmetrics.CONTENT_TYPE_LATEST)
        return MetricsText(generate_latest(self._registry), METRICS_CONTENT_TYPE)

    def read(self) -> MetricsData | None:
        """What the instruments hold now. One caller at a time."""
        self.collect()
        data, self._data = self._data, None
        return data

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        return

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        self._data = self._tallies.added_to(metrics_data)


class _Families:
    """A collector of prometheus_client's. The SDK tells of an exemplar once; it is kept here for every scraper, one a
    bucket, until there is a later one."""

    def __init__(self, reader: PrometheusText) -> None:
        self._reader = reader
        self._lock = Lock()
        self._examples: dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, Exemplar]] = {}

    def describe(self) -> Iterable[Metric]:
        """Nothing is known beforehand, and no metric asked for to find out."""
        return ()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            yield from list(self._families())

    def _families(self) -> Iterator[Metric]:
        data = self._reader.read()
        for resource in data.resource_metrics if data is not None else ():
            target = Metric("target", "What is observed", "info")
            target.add_sample("target_info", _labels(resource.resource.attributes), 1)
            yield target
            for scope in resource.scope_metrics:
                yield from map(self._family, scope.metrics)

    def _family(self, metric: OtelMetric) -> Metric:
        unit = _UNITS.get(metric.unit or "", "")
        family = Metric(_name(metric.name), metric.description or metric.name, _kind(metric), unit)
        for point in metric.data.data_points:
            if isinstance(point, HistogramDataPoint):
                self._add_histogram(family, point)
            elif isinstance(point, NumberDataPoint):
                suffix = "_total" if family.type == "counter" else ""
                family.add_sample(f"{family.name}{suffix}", _labels(point.attributes), point.value)
        return family

    def _add_histogram(self, family: Metric, point: HistogramDataPoint) -> None:
        labels, num_below = _labels(point.attributes), 0
        bounds = [*point.explicit_bounds, float("inf")]
        examples = self._examples.setdefault((family.name, tuple(labels.items())), {})
        examples |= _examples(point, bounds)
        for index, (bound, count) in enumerate(zip(bounds, point.bucket_counts, strict=True)):
            num_below += count
            told = {**labels, "le": "+Inf" if bound == float("inf") else str(bound)}
            family.add_sample(f"{family.name}_bucket", told, num_below, None, examples.get(index))
        family.add_sample(f"{family.name}_count", labels, num_below)
        family.add_sample(f"{family.name}_sum", labels, point.sum)


def _openmetrics(registry: CollectorRegistry) -> bytes:
    untyped = openmetrics.generate_latest  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return cast(Callable[[CollectorRegistry], bytes], untyped)(registry)


def _examples(point: HistogramDataPoint, bounds: Sequence[float]) -> dict[int, Exemplar]:
    """The latest of each bucket that has a trace."""
    found: dict[int, Exemplar] = {}
    for one in sorted(point.exemplars, key=lambda one: one.time_unix_nano):
        if one.trace_id and one.span_id:
            index = next(index for index, bound in enumerate(bounds) if one.value <= bound)
            trace = {"trace_id": f"{one.trace_id:032x}", "span_id": f"{one.span_id:016x}"}
            found[index] = Exemplar(trace, one.value, one.time_unix_nano / 1e9)
    return found


def _kind(metric: OtelMetric) -> str:
    match metric.data:
        case Sum(is_monotonic=True):
            return "counter"
        case Sum() | Gauge():
            return "gauge"
        case Histogram():
            return "histogram"
        case _:
            return "unknown"


def _name(name: str) -> str:
    return _OTHER_CHARS.sub("_", name)


def _labels(attributes: Mapping[str, Any] | None) -> dict[str, str]:
    return {_name(key).replace(":", "_").replace(".", "_"): str(value) for key, value in (attributes or {}).items()}


def _wants_openmetrics(accepted: str) -> bool:
    kind, *parameters = (part.strip().lower() for part in accepted.split(";"))
    return kind == _MEDIA_TYPE and not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)


__all__ = ("PrometheusText",)
