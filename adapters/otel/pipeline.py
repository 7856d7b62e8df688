"""OpenTelemetry's providers with the exporters of a plan, and the telemetry that is assembled on them. The providers
are Cairn's own, never made global."""

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.trace import NoOpTracerProvider, get_current_span
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from adapters.otel.http import HttpTracing, current_carrier
from adapters.otel.message_content import MessageContent
from adapters.otel.metrics import MetricEvents, no_trace
from adapters.otel.request_spans import SpanEvents
from adapters.otel.telemetry import NO_ROUTERS, OTLP, AsgiApp, ExportPlan, MetricsText, RouterFigures, Telemetry
from adapters.otel.vllm_names import VllmNames
from application.installation import installed_version
from application.ports.clock import Clock
from application.services.event_sinks import EventFanOut
from application.services.faults import explained
from application.services.live_figures import LiveFigures
from domain.ids import RequestId

SHUTDOWN_TIMEOUT_S = 5.0
"""The wait for a collector that does not answer, when the server ends."""

SCOPE = "cairn"
"""The name of the instrumentation scope."""

_VIEWS = (
    # The instrumentation keeps the response's size on itself, so that concurrent requests read each other's.
    View(instrument_name="http.server.response.body.size", aggregation=DropAggregation()),
)

_logger = logging.getLogger("cairn.telemetry")


class _Explaining(logging.Filter):
    """Completes the exporters' own messages about connections that failed."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = explained(record.getMessage()), ()
        return True


_EXPLAINING = _Explaining()


def build_resource(environment: Mapping[str, str]) -> Resource:
    """The resource of all signals. `service.name` is `cairn` unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES says
    otherwise."""
    attributes = {SERVICE_VERSION: installed_version()}
    named = [item.partition("=")[0].strip() for item in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")]
    if not environment.get("OTEL_SERVICE_NAME") and SERVICE_NAME not in named:
        attributes[SERVICE_NAME] = "cairn"
    return Resource.create({name: value for name, value in attributes.items() if name not in named})


def build_tracer_provider(plan: ExportPlan, resource: Resource) -> TracerProvider:
    """The sampler, limits and batch sizes follow OTEL_TRACES_SAMPLER, OTEL_SPAN_* and OTEL_BSP_*."""
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for name in plan.traces:
        exporter = OTLPSpanExporter() if name == OTLP else ConsoleSpanExporter()
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def build_meter_provider(plan: ExportPlan, resource: Resource, readers: Sequence[MetricReader]) -> MeterProvider:
    """A meter provider; `readers` are added to those of the plan. Intervals follow OTEL_METRIC_EXPORT_*."""
    exporters = [OTLPMetricExporter() if name == OTLP else ConsoleMetricExporter() for name in plan.metrics]
    pushing = [PeriodicExportingMetricReader(exporter) for exporter in exporters]
    return MeterProvider([*readers, *pushing], resource, shutdown_on_exit=False, views=_VIEWS)


class PrometheusText:
    """The body of `GET /metrics`, on a registry of its own so that two servers in one process do not mix, with the
    process's figures beside it. `reader` belongs into one meter provider. Calling it renders the text; any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.reader = PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)

    def add(self, collector: Collector) -> None:
        """Adds metrics that are not of the reader's provider."""
        self._registry.register(collector)

    def __call__(self, accept: str) -> MetricsText:
        """Render the text. `accept`: the request's header; it decides between the text format and OpenMetrics."""
        encode, content_type = choose_encoder(accept)
        return MetricsText(encode(self._registry), content_type)


def build_pipeline(
    plan: ExportPlan,
    serve_metrics: bool,
    clock: Clock,
    figures: LiveFigures,
    routers: RouterFigures = NO_ROUTERS,
) -> Telemetry:
    """Build the telemetry of a plan with at least one signal; the others have no provider and no sink."""
    resource = build_resource(os.environ)
    text = PrometheusText() if serve_metrics else None
    readers = [text.reader] if text is not None else []
    for exporter in (OTLPSpanExporter, OTLPMetricExporter):
        logging.getLogger(exporter.__module__).addFilter(_EXPLAINING)
    return assemble(
        clock,
        figures,
        build_tracer_provider(plan, resource) if plan.traces else None,
        build_meter_provider(plan, resource, readers) if readers or plan.metrics else None,
        metrics_text=text,
        content=MessageContent() if plan.content else None,
        routers=routers,
    )


def assemble(
    clock: Clock,
    figures: LiveFigures,
    tracers: TracerProvider | None,
    meters: MeterProvider | None,
    *,
    metrics_text: PrometheusText | None = None,
    content: MessageContent | None = None,
    routers: RouterFigures = NO_ROUTERS,
) -> Telemetry:
    """Telemetry on the given providers. Its `shutdown` shuts them down."""
    version = installed_version()
    spans = SpanEvents(tracers.get_tracer(SCOPE, version), clock, content=content) if tracers else None
    failures, trace_of = (spans.failures, spans.trace_of) if spans else (dict[str, int], no_trace)
    meter = meters.get_meter(SCOPE, version) if meters else None
    metrics = MetricEvents(meter, figures, failures, trace_of, routers) if meter else None
    if metrics is not None and metrics_text is not None and routers.vllm_names:
        metrics_text.add(VllmNames(metrics.view))

    def wrap(app: AsgiApp) -> AsgiApp:
        return HttpTracing(app, tracers or NoOpTracerProvider(), meters or NoOpMeterProvider())

    def flush() -> None:
        if spans is not None:
            spans.close()

    def trace_ids(id: RequestId) -> Mapping[str, str]:
        trace = trace_of(id)
        context = get_current_span(trace).get_span_context() if trace is not None else None
        if context is None or not context.is_valid:
            return {}
        return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}

    # Metrics first: the event that ends the spans of a request is measured too, with the trace as its exemplar.
    return Telemetry(
        sink=EventFanOut(*(sink for sink in (metrics, spans) if sink is not None)),
        middleware=wrap if tracers or meters else None,
        trace_context=current_carrier if spans else dict[str, str],
        trace_ids=trace_ids,
        content=content,
        metrics_text=metrics_text,
        shutdown=_Shutdown([flush, *(provider.shutdown for provider in (tracers, meters) if provider)]),
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
            _logger.warning("telemetry was not exported completely within %.0f s; the rest is lost", SHUTDOWN_TIMEOUT_S)

    def _run(self) -> None:
        for step in self._steps:
            try:
                step()
            except Exception:
                _logger.exception("telemetry did not end well")
