"""Histograms of what comes many times a step, counted here and handed over when metrics are collected.

Recording one value through the SDK takes 5 to 10 microseconds of whoever does it, and one step of many streams has
dozens: that would be percents of their rate. Counting any number of equal values here takes one. What is handed over is
what the SDK would have made of them, but for exemplars and extremes.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from time import time_ns
from typing import TypeAlias, cast

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
)

from adapters.otel.metric_spec import MetricKind, MetricSpec

SCOPE = "cairn"

_Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name, and attributes."""

_UNKNOWN = cast(float, None)
"""For the least and the greatest value, which the protocol may leave out and the SDK's type may not."""


@dataclass(slots=True)
class _Counts:
    """What fell into each bucket, the last one for what is above all bounds."""

    buckets: list[int]
    sum: float = 0.0


class Tallies:
    """Those of a catalogue that are tallies. Any thread."""

    def __init__(self, catalogue: Iterable[MetricSpec]) -> None:
        self._lock = Lock()
        self._started_ns = time_ns()
        self._specs = {spec.name: spec for spec in catalogue if spec.kind is MetricKind.TALLY}
        self._counts: dict[_Key, _Counts] = {}

    def count(self, spec: MetricSpec, value: float, num: int, attributes: Mapping[str, str]) -> None:
        """`num` times the same value."""
        key = (spec.name, tuple(attributes.items()))
        with self._lock:
            counts = self._counts.get(key)
            if counts is None:
                counts = self._counts[key] = _Counts([0] * (len(spec.buckets) + 1))
            counts.buckets[bisect_left(spec.buckets, value)] += num
            counts.sum += value * num

    def points(self) -> dict[_Key, HistogramDataPoint]:
        """All that was counted so far."""
        now_ns = time_ns()
        with self._lock:
            return {
                (name, labels): HistogramDataPoint(
                    attributes=dict(labels),
                    start_time_unix_nano=self._started_ns,
                    time_unix_nano=now_ns,
                    count=sum(counts.buckets),
                    sum=counts.sum,
                    bucket_counts=tuple(counts.buckets),
                    explicit_bounds=self._specs[name].buckets,
                    min=_UNKNOWN,
                    max=_UNKNOWN,
                )
                for (name, labels), counts in self._counts.items()
            }

    def metrics(self, points: Mapping[_Key, HistogramDataPoint], temporality: AggregationTemporality) -> list[Metric]:
        """Points as the SDK hands them over."""
        found: dict[str, list[HistogramDataPoint]] = {}
        for (name, _), point in points.items():
            found.setdefault(name, []).append(point)
        specs = [(self._specs[name], Histogram(own, temporality)) for name, own in found.items()]
        return [Metric(spec.name, spec.description, spec.unit, data) for spec, data in specs]


class TallyReading:
    """How one reader gets the tallies: all of them each time, or with `is_delta` what came since its last time. One
    caller at a time."""

    def __init__(self, tallies: Tallies, *, is_delta: bool = False) -> None:
        self._tallies = tallies
        self._is_delta = is_delta
        self._last: dict[_Key, HistogramDataPoint] = {}

    def added_to(self, data: MetricsData) -> MetricsData:
        """`data` with the tallies among the metrics of our scope, or as it is where that has none."""
        points, temporality = self._tallies.points(), AggregationTemporality.CUMULATIVE
        if self._is_delta:
            temporality, last, self._last = AggregationTemporality.DELTA, self._last, points
            since = {key: _since(point, last.get(key)) for key, point in points.items()}
            points = {key: point for key, point in since.items() if point.count}
        metrics = self._tallies.metrics(points, temporality)
        resources = [
            replace(
                resource,
                scope_metrics=[
                    replace(one, metrics=[*one.metrics, *metrics]) if one.scope.name == SCOPE else one
                    for one in resource.scope_metrics
                ],
            )
            for resource in data.resource_metrics
        ]
        return replace(data, resource_metrics=resources)


def _since(point: HistogramDataPoint, last: HistogramDataPoint | None) -> HistogramDataPoint:
    """What came after `last`."""
    if last is None:
        return point
    return replace(
        point,
        start_time_unix_nano=last.time_unix_nano,
        count=point.count - last.count,
        sum=point.sum - last.sum,
        bucket_counts=tuple(now - then for now, then in zip(point.bucket_counts, last.bucket_counts, strict=True)),
    )


__all__ = ("SCOPE", "Tallies", "TallyReading")
