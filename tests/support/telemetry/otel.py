"""OpenTelemetry with in-memory exporters."""

import os
from collections.abc import Callable, Mapping, Sequence

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from adapters.fake.environment import FakeClock
from adapters.otel.metrics import MetricEvents, TraceLookup, no_trace
from adapters.otel.pipeline import SCOPE
from adapters.otel.request_spans import SpanEvents
from application.events import Event
from application.services.event_sinks import EventFanOut
from application.services.live_figures import LiveFigures
from application.services.request_timelines import RequestTimelines
from tests.support.telemetry.event_script import START_NS

OFFSET_NS = 1_700_000_000_000_000_000
"""From the monotonic clock to Unix time."""


def clear_otel_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite disables the SDK; what tests telemetry needs an environment that says nothing."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def live_figures() -> LiveFigures:
    """Counts on a clock that stands. Emit to `timelines` of them and to them."""
    return LiveFigures(FakeClock(START_NS, OFFSET_NS), RequestTimelines())


class SpanRecorder:
    """A tracer provider and the spans that ended, in that order."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def sink(self, max_open: int = 16) -> SpanEvents:
        """A sink whose spans are recorded."""
        return SpanEvents(self.provider.get_tracer("test"), FakeClock(START_NS, OFFSET_NS), max_open)

    def play(self, events: Sequence[Event]) -> SpanEvents:
        """A sink that took `events`, all without a failure."""
        sink = self.sink()
        for event in events:
            sink.emit(event)
        assert sink.failures() == {}
        return sink

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans() if span.name == name]
        return span


class MetricRecorder:
    """A meter provider and what its instruments hold."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def sink(
        self, other_failures: Callable[[], Mapping[str, int]] = dict, trace_of: TraceLookup = no_trace
    ) -> EventFanOut:
        """Metrics of events, on this provider, behind the timelines and the counts that they read."""
        figures = live_figures()
        self.events = MetricEvents(self.provider.get_meter(SCOPE), figures, other_failures, trace_of)
        return EventFanOut(figures.timelines, self.events, figures)

    def points(self) -> dict[str, dict[frozenset[tuple[str, object]], object]]:
        """Data points by metric name and attributes."""
        data = self._reader.get_metrics_data()
        resources = data.resource_metrics if data else []
        metrics = [metric for resource in resources for scope in resource.scope_metrics for metric in scope.metrics]
        return {
            metric.name: {frozenset((point.attributes or {}).items()): point for point in metric.data.data_points}
            for metric in metrics
        }
