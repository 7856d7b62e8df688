"""What telemetry gives to the rest of the server, with nothing behind it when it is off. Imports no OpenTelemetry."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from application.ports.content_sink import ContentSink
from application.ports.event_sink import EventSink
from application.services.event_fan_out import NullEvents
from domain.ids import RequestId

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


class MetricsText(NamedTuple):
    """The body of `GET /metrics`, and what it is."""

    body: bytes
    content_type: str


def _no_context() -> Mapping[str, str]:
    return {}


def _no_trace(_id: RequestId) -> Mapping[str, str]:
    return {}


def _no_shutdown() -> None:
    return


@dataclass(frozen=True, slots=True)
class Telemetry:
    """`sink` takes the engine's events. `middleware` wraps the ASGI application, outermost; None: nothing to wrap.

    `trace_context` gives the W3C headers of the running HTTP request, for GenerationRequest.trace_carrier; call it in
    the request's own task. `trace_ids` gives `trace_id` and `span_id` of an open request's span, empty without one; any
    thread. `content` takes what is said; None where that is nobody's business. `metrics_text` answers `GET /metrics` to
    who accepts that, None when metrics are not served; any thread, a few milliseconds. `shutdown` exports what is left
    within a bounded time; call it when the engine has stopped; idempotent, blocking.
    """

    sink: EventSink = field(default_factory=NullEvents)
    middleware: Callable[[AsgiApp], AsgiApp] | None = None
    trace_context: Callable[[], Mapping[str, str]] = _no_context
    trace_ids: Callable[[RequestId], Mapping[str, str]] = _no_trace
    content: ContentSink | None = None
    metrics_text: Callable[[str], MetricsText] | None = None
    shutdown: Callable[[], None] = _no_shutdown
