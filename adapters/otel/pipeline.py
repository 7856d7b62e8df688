"""The parts of telemetry put together: providers, sinks, middleware, and their common end."""

import logging
import os
import threading
from collections.abc import Callable, Sequence

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider

from adapters.otel.environment import ExportPlan
from adapters.otel.http import HttpTracing, current_carrier
from adapters.otel.metrics import MetricEvents
from adapters.otel.prometheus import PrometheusText
from adapters.otel.providers import SCOPE, build_meter_provider, build_resource, build_tracer_provider, cairn_version
from adapters.otel.spans import SpanEvents
from adapters.otel.telemetry import AsgiApp, Telemetry
from application.ports.clock import Clock
from application.services.event_fan_out import EventFanOut

SHUTDOWN_TIMEOUT_S = 5.0
"""A collector that does not answer must not keep the server from ending."""

_logger = logging.getLogger("cairn.telemetry")


def build_pipeline(plan: ExportPlan, serve_metrics: bool, clock: Clock) -> Telemetry:
    """At least one signal is on; the other has no provider and no sink."""
    resource = build_resource(os.environ)
    text = PrometheusText() if serve_metrics else None
    tracers = build_tracer_provider(plan, resource) if plan.traces else None
    meters = build_meter_provider(plan, resource, [text.reader] if text else []) if text or plan.metrics else None
    return assemble(clock, tracers, meters, text)


def assemble(
    clock: Clock,
    tracers: TracerProvider | None,
    meters: MeterProvider | None,
    metrics_text: Callable[[], bytes] | None = None,
) -> Telemetry:
    """Telemetry on the given providers, which it shuts down in the end."""
    version = cairn_version()
    spans = SpanEvents(tracers.get_tracer(SCOPE, version), clock) if tracers else None
    failures = spans.failures if spans else dict[str, int]
    metrics = MetricEvents(meters.get_meter(SCOPE, version), failures) if meters else None

    def wrap(app: AsgiApp) -> AsgiApp:
        return HttpTracing(app, tracers or NoOpTracerProvider(), meters or NoOpMeterProvider())

    def flush_spans() -> None:
        if spans is not None:
            spans.close()

    return Telemetry(
        sink=EventFanOut(*(sink for sink in (spans, metrics) if sink is not None)),
        middleware=wrap,
        trace_context=current_carrier if spans else dict[str, str],
        metrics_text=metrics_text,
        shutdown=_Shutdown([flush_spans, *(provider.shutdown for provider in (tracers, meters) if provider)]),
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


__all__ = ("SHUTDOWN_TIMEOUT_S", "assemble", "build_pipeline")
