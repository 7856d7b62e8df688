"""The parts of telemetry put together: providers, sinks, middleware, and their common end."""

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from adapters.otel.environment import ExportPlan
from adapters.otel.http import HttpTracing, current_carrier
from adapters.otel.log_export import LogExport
from adapters.otel.metrics.catalogue import MetricEvents
from adapters.otel.providers import (
    SCOPE,
    build_logger_provider,
    build_meter_provider,
    build_resource,
    build_tracer_provider,
)
from adapters.otel.spans.message_content import MessageContent
from adapters.otel.spans.request_spans import SpanEvents
from adapters.otel.telemetry import AsgiApp, MetricsText, Telemetry
from adapters.otel.trace_lookup import ids_of, no_trace
from application.installation import installed_version
from application.ports.clock import Clock
from application.services.event_fan_out import EventFanOut
from application.services.request_timelines import RequestTimelines
from domain.ids import RequestId


class PrometheusText:
    """The body of `GET /metrics`, on a registry of its own so that two servers in one process do not mix, with the
    process's figures beside it. `reader` belongs into one meter provider. Calling it renders the text; any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.reader = PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)

    def __call__(self, accept: str) -> MetricsText:
        """`accept`: the request's header; it decides between the text format and OpenMetrics."""
        encode, content_type = choose_encoder(accept)
        return MetricsText(encode(self._registry), content_type)


SHUTDOWN_TIMEOUT_S = 5.0
"""A collector that does not answer must not keep the server from ending."""

_logger = logging.getLogger("cairn.telemetry")


def build_pipeline(plan: ExportPlan, serve_metrics: bool, clock: Clock, timelines: RequestTimelines) -> Telemetry:
    """At least one signal is on; the others have no provider and no sink."""
    resource = build_resource(os.environ)
    text = PrometheusText() if serve_metrics else None
    readers = [text.reader] if text is not None else []
    return assemble(
        clock,
        timelines,
        build_tracer_provider(plan, resource) if plan.traces else None,
        build_meter_provider(plan, resource, readers) if readers or plan.metrics else None,
        build_logger_provider(plan, resource) if plan.logs else None,
        metrics_text=text,
        content=MessageContent() if plan.content else None,
    )


def assemble(
    clock: Clock,
    timelines: RequestTimelines,
    tracers: TracerProvider | None,
    meters: MeterProvider | None,
    loggers: LoggerProvider | None = None,
    *,
    metrics_text: Callable[[str], MetricsText] | None = None,
    content: MessageContent | None = None,
) -> Telemetry:
    """Telemetry on the given providers, which it shuts down in the end."""
    version = installed_version()
    spans = SpanEvents(tracers.get_tracer(SCOPE, version), clock, content=content) if tracers else None
    failures, trace_of = (spans.failures, spans.trace_of) if spans else (dict[str, int], no_trace)
    meter = meters.get_meter(SCOPE, version) if meters else None
    metrics = MetricEvents(meter, clock, timelines, failures, trace_of) if meter else None
    logs = LogExport(loggers) if loggers else None
    if logs is not None:
        logs.attach()

    def wrap(app: AsgiApp) -> AsgiApp:
        return HttpTracing(app, tracers or NoOpTracerProvider(), meters or NoOpMeterProvider())

    def flush() -> None:
        if spans is not None:
            spans.close()
        if logs is not None:
            logs.detach()

    def trace_ids(id: RequestId) -> Mapping[str, str]:
        return ids_of(trace_of(id))

    # Metrics first: what ends a request's tree is also measured, and points to its trace.
    return Telemetry(
        sink=EventFanOut(*(sink for sink in (metrics, spans) if sink is not None)),
        middleware=wrap if tracers or meters else None,
        trace_context=current_carrier if spans else dict[str, str],
        trace_ids=trace_ids,
        content=content,
        metrics_text=metrics_text,
        shutdown=_Shutdown([flush, *(provider.shutdown for provider in (tracers, meters, loggers) if provider)]),
    )


class _Shutdown:
    """Runs `steps` once, all of them, and waits SHUTDOWN_TIMEOUT_S at most."""

    def __init__(self, steps: Sequence[Callable[[], None]]) -> None:
        self._steps = steps
        self._thread: threading.Thread | None = None

    def __call__(self) -> None:
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="cairn-telemetry-end", daemon=True)
        self._thread.start()
        self._thread.join(SHUTDOWN_TIMEOUT_S)
        if self._thread.is_alive():
            _logger.warning("telemetry was not all exported within %.0f s; the rest is lost", SHUTDOWN_TIMEOUT_S)

    def _run(self) -> None:
        for step in self._steps:
            try:
                step()
            except Exception:
                _logger.exception("telemetry did not end well")
