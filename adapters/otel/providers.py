"""OpenTelemetry's providers with the exporters of a plan. They are Cairn's own, never made global."""

from collections.abc import Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, ConsoleLogRecordExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from adapters.otel.environment import OTLP, ExportPlan
from application.installation import installed_version


class LinkedSampler(Sampler):
    """Keeps a span that follows others by links alone if one of them was kept: what a request left behind belongs to
    it, whatever share of traces is kept. `otherwise` decides about spans that have a parent, or no link."""

    def __init__(self, otherwise: Sampler) -> None:
        self._otherwise = otherwise

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        is_root = not get_current_span(parent_context).get_span_context().is_valid
        if is_root and any(link.context.trace_flags.sampled for link in links or ()):
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)
        return self._otherwise.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return f"Linked{{{self._otherwise.get_description()}}}"


SCOPE = "cairn"
"""The name of the instrumentation scope."""

_VIEWS = (
    # The instrumentation keeps the response's size on itself, so that concurrent requests read each other's.
    View(instrument_name="http.server.response.body.size", aggregation=DropAggregation()),
)


def build_resource(environment: Mapping[str, str]) -> Resource:
    """`service.name` is `cairn` unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES says otherwise."""
    attributes = {SERVICE_VERSION: installed_version()}
    named = [item.partition("=")[0].strip() for item in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")]
    if not environment.get("OTEL_SERVICE_NAME") and SERVICE_NAME not in named:
        attributes[SERVICE_NAME] = "cairn"
    return Resource.create({name: value for name, value in attributes.items() if name not in named})


def build_tracer_provider(plan: ExportPlan, resource: Resource) -> TracerProvider:
    """The sampler, limits and batch sizes follow OTEL_TRACES_SAMPLER, OTEL_SPAN_* and OTEL_BSP_*."""
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.sampler = LinkedSampler(provider.sampler)
    for name in plan.traces:
        exporter = OTLPSpanExporter() if name == OTLP else ConsoleSpanExporter()
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def build_logger_provider(plan: ExportPlan, resource: Resource) -> LoggerProvider:
    """Batch sizes follow OTEL_BLRP_*, lengths OTEL_LOGRECORD_*."""
    provider = LoggerProvider(resource, shutdown_on_exit=False)
    for name in plan.logs:
        exporter = OTLPLogExporter() if name == OTLP else ConsoleLogRecordExporter()
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    return provider


def build_meter_provider(plan: ExportPlan, resource: Resource, readers: Sequence[MetricReader]) -> MeterProvider:
    """`readers` are added to the plan's. Intervals follow OTEL_METRIC_EXPORT_*."""
    exporters = [OTLPMetricExporter() if name == OTLP else ConsoleMetricExporter() for name in plan.metrics]
    pushing = [PeriodicExportingMetricReader(exporter) for exporter in exporters]
    return MeterProvider([*readers, *pushing], resource, shutdown_on_exit=False, views=_VIEWS)
