"""Telemetry as the settings and the standard OTEL_* variables ask for it.

OpenTelemetry is imported only when something is on. A signal is exported when its exporter is named
(OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER: `otlp`, `console`, `none`, or several with commas) or when the endpoint of
a collector is set. With neither nothing is exported. Everything else (sampler, batch sizes, limits, headers, resource
attributes) is read by the SDK itself.
"""

import logging
import os
from collections.abc import Mapping

from adapters.otel.telemetry import CONSOLE, NO_ROUTERS, OTLP, ExportPlan, RouterFigures, Telemetry
from application.ports.clock import Clock
from application.services.live_figures import LiveFigures
from application.settings import TelemetrySettings

_logger = logging.getLogger("cairn.telemetry")

PROMETHEUS = "prometheus"

CAPTURE_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

_NO_CONTENT = frozenset({"", "FALSE", "NO_CONTENT"})
_CONTENT = frozenset({"TRUE", "SPAN_ONLY", "SPAN_AND_EVENT"})


def is_sdk_disabled(environment: Mapping[str, str]) -> bool:
    return environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def plan_exports(environment: Mapping[str, str]) -> ExportPlan:
    """The plan that the variables ask for. Unknown exporters and protocols are logged and ignored, as the specification
    asks."""
    if is_sdk_disabled(environment):
        return ExportPlan()
    traces = _exporters(environment, "TRACES", frozenset({OTLP, CONSOLE}))
    metrics = _exporters(environment, "METRICS", frozenset({OTLP, CONSOLE, PROMETHEUS}))
    push = tuple(name for name in metrics if name != PROMETHEUS)
    content = _captures_content(environment) and bool(traces)
    return ExportPlan(traces, push, PROMETHEUS in metrics, content)


def _captures_content(environment: Mapping[str, str]) -> bool:
    """True if message content is to be captured, into spans only; the variable is read as GenAI instrumentations read
    it."""
    wanted = environment.get(CAPTURE_CONTENT, "").strip().upper()
    if wanted not in _NO_CONTENT | _CONTENT:
        _logger.warning("%s=%s is not supported here (no_content or span_only)", CAPTURE_CONTENT, wanted)
    return wanted in _CONTENT


def _exporters(environment: Mapping[str, str], signal: str, known: frozenset[str]) -> tuple[str, ...]:
    variable = f"OTEL_{signal}_EXPORTER"
    named = [name.strip().lower() for name in environment.get(variable, "").split(",")]
    wanted = [name for name in named if name]
    if not wanted and _has_endpoint(environment, signal):
        wanted = [OTLP]
    for name in wanted:
        if name not in known and name != "none":
            _logger.warning("%s=%s is not supported here (otlp, console or none)", variable, name)
    chosen = tuple(dict.fromkeys(name for name in wanted if name in known))
    if OTLP in chosen and not _speaks_http(environment, signal):
        return tuple(name for name in chosen if name != OTLP)
    return chosen


def _has_endpoint(environment: Mapping[str, str], signal: str) -> bool:
    variables = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return any(environment.get(variable, "").strip() for variable in variables)


def _speaks_http(environment: Mapping[str, str], signal: str) -> bool:
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environment.get(variable, "").strip().lower()
        if not protocol:
            continue
        if protocol != "http/protobuf":
            _logger.warning("%s=%s is not supported here, only http/protobuf (port 4318)", variable, protocol)
            return False
        return True
    return True


def build_telemetry(
    settings: TelemetrySettings, clock: Clock, figures: LiveFigures, routers: RouterFigures = NO_ROUTERS
) -> Telemetry:
    """Build telemetry. An absent collector is no error here: the exporter's own thread finds and logs it.

    Traces are on when an exporter is configured; metrics when one is, or when `/metrics` is served.
    """
    if not settings.enabled or is_sdk_disabled(os.environ):
        return Telemetry()
    plan = plan_exports(os.environ)
    serve_metrics = settings.metrics or plan.prometheus
    if not (plan.traces or plan.metrics or serve_metrics):
        return Telemetry()
    from adapters.otel.pipeline import build_pipeline

    return build_pipeline(plan, serve_metrics, clock, figures, routers)
