"""Telemetry as the settings and the OTEL_* variables want it. OpenTelemetry is imported only when something is on."""

import os

from adapters.otel.environment import is_sdk_disabled, plan_exports
from adapters.otel.telemetry import Telemetry
from application.ports.clock import Clock
from application.services.request_timelines import RequestTimelines
from application.settings import TelemetrySettings


def build_telemetry(settings: TelemetrySettings, clock: Clock, timelines: RequestTimelines) -> Telemetry:
    """Never fails for a collector that is absent: that is found out, and logged, by the exporter's own thread.

    Traces and logs are on when an exporter is configured; metrics when one is, or when `/metrics` is served.
    """
    if not settings.enabled or is_sdk_disabled(os.environ):
        return Telemetry()
    plan = plan_exports(os.environ)
    serve_metrics = settings.metrics or plan.prometheus
    if not (plan.traces or plan.metrics or plan.logs or serve_metrics):
        return Telemetry()
    from adapters.otel.pipeline import build_pipeline

    return build_pipeline(plan, serve_metrics, clock, timelines)
