"""A catalogue's instruments on one meter. Threading: recording is the caller's thread's; readings are taken on the
thread that collects, so what they read must bear that."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

from adapters.otel.metrics.metric_spec import MetricKind, MetricSpec

Attributes: TypeAlias = Mapping[str, str]
Readings: TypeAlias = Callable[[], Iterable[tuple[float, Attributes]]]

_NO_TRACE = Context()


class Instruments:
    """Counters and histograms exist from the start; observed ones from their `observe`. What the catalogue
    does not hold is a KeyError."""

    def __init__(self, meter: Meter, catalogue: Iterable[MetricSpec]) -> None:
        self._meter = meter
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._observed: set[str] = set()
        for spec in catalogue:
            if spec.kind is MetricKind.COUNTER:
                self._counters[spec.name] = meter.create_counter(spec.name, spec.unit, spec.description)
            elif spec.kind is MetricKind.HISTOGRAM:
                self._histograms[spec.name] = meter.create_histogram(
                    spec.name, spec.unit, spec.description, explicit_bucket_boundaries_advisory=spec.buckets
                )
            else:
                self._observed.add(spec.name)

    def add(self, spec: MetricSpec, amount: int, attributes: Attributes) -> None:
        if amount > 0:
            self._counters[spec.name].add(amount, attributes, _NO_TRACE)

    def record(
        self, spec: MetricSpec, value: float | None, attributes: Attributes, trace: Context | None = None
    ) -> None:
        """None is what did not happen and is not recorded. `trace`: of what was measured, which becomes its example."""
        if value is not None:
            self._histograms[spec.name].record(max(value, 0.0), attributes, trace or _NO_TRACE)

    def observe(self, spec: MetricSpec, readings: Readings) -> None:
        """Read `readings` whenever metrics are collected."""

        def callback(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, attributes) for value, attributes in readings()]

        self._observed.remove(spec.name)
        is_counter = spec.kind is MetricKind.OBSERVED_COUNTER
        create = self._meter.create_observable_counter if is_counter else self._meter.create_observable_gauge
        create(spec.name, [callback], spec.unit, spec.description)
