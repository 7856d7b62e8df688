"""Histograms that are counted here come out as the SDK's own would."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint, InMemoryMetricReader

from adapters.otel.metric_spec import MetricKind, MetricSpec
from adapters.otel.tallies import SCOPE, Tallies, TallyReading
from tests.support.otel import clear_otel_variables

TALLY = MetricSpec("a.tally", MetricKind.TALLY, "s", "Counted here", ("model",), (0.1, 1.0))


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    clear_otel_variables(monkeypatch)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    theirs = provider.get_meter(SCOPE).create_histogram(
        "theirs", explicit_bucket_boundaries_advisory=list(TALLY.buckets)
    )
    for value in VALUES:
        theirs.record(value, {"model": "m"})
    yield reader
    provider.shutdown()


VALUES = (0.05, 0.1, 0.1, 0.5, 1.0, 7.0)


def read(reader: InMemoryMetricReader, reading: TallyReading) -> dict[str, Histogram]:
    data = reader.get_metrics_data()
    assert data is not None
    scopes = [scope for resource in reading.added_to(data).resource_metrics for scope in resource.scope_metrics]
    found = {metric.name: metric.data for scope in scopes for metric in scope.metrics}
    return {name: value for name, value in found.items() if isinstance(value, Histogram)}


def point_of(histogram: Histogram) -> HistogramDataPoint:
    (point,) = histogram.data_points
    return point


def test_equal_values_fall_into_equal_buckets(reader: InMemoryMetricReader) -> None:
    tallies = Tallies([TALLY])
    for value in VALUES:
        tallies.count(TALLY, value, 1, {"model": "m"})
    found = read(reader, TallyReading(tallies))
    ours, theirs = point_of(found["a.tally"]), point_of(found["theirs"])
    assert (tuple(ours.bucket_counts), tuple(ours.explicit_bounds)) == (
        tuple(theirs.bucket_counts),
        tuple(theirs.explicit_bounds),
    )
    assert (ours.count, ours.attributes) == (theirs.count, theirs.attributes)
    assert ours.sum == pytest.approx(theirs.sum)


def test_many_of_one_value_count_as_many(reader: InMemoryMetricReader) -> None:
    tallies = Tallies([TALLY])
    tallies.count(TALLY, 0.5, 8, {})
    point = point_of(read(reader, TallyReading(tallies))["a.tally"])
    assert (point.count, point.sum, list(point.bucket_counts)) == (8, 4.0, [0, 8, 0])


def test_each_reader_has_all_or_what_came_since_its_last_time(reader: InMemoryMetricReader) -> None:
    tallies = Tallies([TALLY])
    whole, since = TallyReading(tallies), TallyReading(tallies, is_delta=True)

    def counts(reading: TallyReading) -> list[int] | None:
        found = read(reader, reading).get("a.tally")
        return None if found is None else list(point_of(found).bucket_counts)

    tallies.count(TALLY, 0.05, 2, {})
    assert (counts(whole), counts(since)) == ([2, 0, 0], [2, 0, 0])
    assert (counts(whole), counts(since)) == ([2, 0, 0], None)
    tallies.count(TALLY, 9.0, 3, {})
    assert (counts(whole), counts(since)) == ([2, 0, 3], [0, 0, 3])


def test_what_came_since_says_so(reader: InMemoryMetricReader) -> None:
    tallies = Tallies([TALLY])
    since = TallyReading(tallies, is_delta=True)
    tallies.count(TALLY, 0.05, 1, {})
    first = read(reader, since)["a.tally"]
    tallies.count(TALLY, 0.05, 1, {})
    second = read(reader, since)["a.tally"]
    assert first.aggregation_temporality is second.aggregation_temporality is AggregationTemporality.DELTA
    assert point_of(second).start_time_unix_nano == point_of(first).time_unix_nano
    assert point_of(second).sum == pytest.approx(0.05)
