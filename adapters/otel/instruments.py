"""The catalogue's instruments on one meter. Threading: recording is the caller's thread's; readings are taken on the
thread that collects, so what they read must bear that."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

from adapters.otel.catalogue import CATALOGUE, MetricKind, MetricSpec

Attributes: TypeAlias = Mapping[str, str]
Readings: TypeAlias = Callable[[], Iterable[tuple[float, Attributes]]]


class Instruments:
    """Counters and histograms exist from the start; observed ones from their `observe`."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for spec in CATALOGUE:
            if spec.kind is MetricKind.COUNTER:
                self._counters[spec.name] = meter.create_counter(spec.name, spec.unit, spec.description)
            elif spec.kind is MetricKind.HISTOGRAM:
                self._histograms[spec.name] = meter.create_histogram(
                    spec.name, spec.unit, spec.description, explicit_bucket_boundaries_advisory=spec.buckets
                )

    def add(self, spec: MetricSpec, amount: int, attributes: Attributes) -> None:
        if amount > 0:
            self._counters[spec.name].add(amount, attributes)

    def record(self, spec: MetricSpec, value: float | None, attributes: Attributes) -> None:
        """None is what did not happen and is not recorded."""
        if value is not None:
            self._histograms[spec.name].record(max(value, 0.0), attributes)

    def observe(self, spec: MetricSpec, readings: Readings) -> None:
        """Read `readings` whenever metrics are collected."""

        def callback(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, attributes) for value, attributes in readings()]

        is_counter = spec.kind is MetricKind.OBSERVED_COUNTER
        create = self._meter.create_observable_counter if is_counter else self._meter.create_observable_gauge
        create(spec.name, [callback], spec.unit, spec.description)


__all__ = ("Attributes", "Instruments", "Readings")
