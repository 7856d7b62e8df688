"""What a metric is, as a value: see `metrics.CATALOGUE` for those there are."""

from dataclasses import dataclass
from enum import Enum

DURATION_BUCKETS = tuple(round(0.01 * 2**n, 2) for n in range(14))
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),  # long prompts on small machines
)
OUTPUT_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAG_BUCKETS = (*STEP_BUCKETS, 30.0, 60.0, 300.0)


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
