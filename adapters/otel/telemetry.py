"""What telemetry gives to the rest of the server, with nothing behind it when it is off. Imports no OpenTelemetry."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from application.ports.event_sink import EventSink
from application.services.event_fan_out import NullEvents

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _no_context() -> Mapping[str, str]:
    return {}


def _no_shutdown() -> None:
    return


@dataclass(frozen=True, slots=True)
class Telemetry:
    """`sink` takes the engine's events. `middleware` wraps the ASGI application, outermost; None: nothing to wrap.

    `trace_context` gives the W3C headers of the running HTTP request, for GenerationRequest.trace_carrier; call it in
    the request's own task. `metrics_text` is the body of `GET /metrics` (content type METRICS_CONTENT_TYPE), None when
    metrics are not served; any thread, a few milliseconds. `shutdown` exports what is left within a bounded time; call
    it when the engine has stopped; idempotent, blocking.
    """

    sink: EventSink = field(default_factory=NullEvents)
    middleware: Callable[[AsgiApp], AsgiApp] | None = None
    trace_context: Callable[[], Mapping[str, str]] = _no_context
    metrics_text: Callable[[], bytes] | None = None
    shutdown: Callable[[], None] = _no_shutdown


__all__ = ("METRICS_CONTENT_TYPE", "AsgiApp", "Message", "Receive", "Send", "Telemetry")
