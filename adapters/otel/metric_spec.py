"""What a metric is, as a value: see `catalogue` for those there are."""

from dataclasses import dataclass
from enum import Enum


class MetricKind(Enum):
    """COUNTER only grows. HISTOGRAM counts values into buckets. The others are read
    when metrics are collected."""

    COUNTER = "counter"
    OBSERVED_COUNTER = "observed counter"
    OBSERVED_GAUGE = "observed gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """`buckets`: upper bounds, for histograms only. `attributes`: every attribute a point may carry."""

    name: str
    kind: MetricKind
    unit: str
    description: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def counter(name: str, unit: str, description: str, *attributes: str) -> MetricSpec:
    return MetricSpec(name, MetricKind.COUNTER, unit, description, attributes)


def observed_counter(name: str, unit: str, description: str, *attributes: str) -> MetricSpec:
    return MetricSpec(name, MetricKind.OBSERVED_COUNTER, unit, description, attributes)


def gauge(name: str, unit: str, description: str, *attributes: str) -> MetricSpec:
    return MetricSpec(name, MetricKind.OBSERVED_GAUGE, unit, description, attributes)


def histogram(name: str, unit: str, description: str, buckets: tuple[float, ...], *attributes: str) -> MetricSpec:
    return MetricSpec(name, MetricKind.HISTOGRAM, unit, description, attributes, buckets)


__all__ = ("MetricKind", "MetricSpec", "counter", "gauge", "histogram", "observed_counter")
