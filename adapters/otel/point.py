"""The values that feeds give to metrics."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from adapters.otel.catalogue import Metric

Attributes: TypeAlias = Mapping[str, str]
NONE: Attributes = {}


class Total(NamedTuple):
    """The value that a counter has reached, for sources that count by themselves."""

    number: float


class Point(NamedTuple):
    """A value for a metric. A counter adds it, a gauge shows it until the next one. None removes a gauge's point, and
    is ignored by a histogram."""

    metric: Metric
    value: float | Total | None
    attributes: Attributes = NONE
