"""Where the engine's events go: to OpenTelemetry as configured, to the request log, to whatever a test adds."""

from collections.abc import Sequence

from adapters.otel.setup import build_telemetry
from adapters.otel.telemetry import Telemetry
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.event_fan_out import EventFanOut
from application.services.request_timelines import RequestTimelines
from application.settings import TelemetrySettings


def make_telemetry(settings: TelemetrySettings, clock: Clock, timelines: RequestTimelines) -> Telemetry:
    return build_telemetry(settings, clock, timelines)


def make_events(
    timelines: RequestTimelines,
    request_log: EventSink,
    telemetry: Telemetry,
    figures: EventSink,
    extra_sinks: Sequence[EventSink],
) -> EventSink:
    """The timelines come first: the others read them. The log comes before telemetry: its lines name the traces that
    telemetry closes."""
    return EventFanOut(timelines, request_log, telemetry.sink, figures, *extra_sinks)


__all__ = ("make_events", "make_telemetry")
