"""Where the engine's events go: to OpenTelemetry as configured, to the request log, to whatever a test adds."""

from collections.abc import Sequence

from adapters.otel.setup import build_telemetry
from adapters.otel.telemetry import Telemetry
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.event_fan_out import EventFanOut
from application.settings import TelemetrySettings


def make_telemetry(settings: TelemetrySettings, clock: Clock) -> Telemetry:
    return build_telemetry(settings, clock)


def make_events(
    telemetry: Telemetry, request_log: EventSink, watched: Sequence[EventSink], extra_sinks: Sequence[EventSink]
) -> EventSink:
    """`watched`: what the admin's page is made of. The log comes first: its lines name the traces that telemetry
    closes."""
    return EventFanOut(request_log, telemetry.sink, *watched, *extra_sinks)


__all__ = ("make_events", "make_telemetry")
