"""The interface of telemetry to the rest of the server, which does nothing by default. Imports no OpenTelemetry."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from application.ports.event_sink import ContentSink, EventSink
from application.services.event_sinks import NullEvents
from domain.ids import RequestId

OTLP = "otlp"
CONSOLE = "console"

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


class MetricsText(NamedTuple):
    """The body of `GET /metrics` and its content type."""

    body: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The parts of telemetry. `sink` takes the engine's events. `middleware` wraps handlers, inside the router and
    outside everything else; None: nothing to wrap.

    `trace_context` gives the W3C headers of the running HTTP request, for GenerationRequest.trace_carrier; call it in
    the request's own task. `trace_ids` gives `trace_id` and `span_id` of an open request's span, empty without one; any
    thread. `content` takes prompts and answers; None where spans do not hold them. `metrics_text` renders the body of
    `GET /metrics` for an Accept header, None when metrics are not served; any thread, a few milliseconds. `shutdown`
    exports the rest within a bounded time; call it when the engine has stopped; idempotent, blocking.
    """

    sink: EventSink = field(default_factory=NullEvents)
    middleware: Callable[[AsgiApp], AsgiApp] | None = None
    trace_context: Callable[[], Mapping[str, str]] = lambda: {}
    trace_ids: Callable[[RequestId], Mapping[str, str]] = lambda _id: {}
    content: ContentSink | None = None
    metrics_text: Callable[[str], MetricsText] | None = None
    shutdown: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class RouterFigures:
    """The part of metrics that is for routers. `default_model`: has figures before it is loaded; empty for none.
    `block_size`: of the prefix cache. `vllm_names`: `GET /metrics` has them under vLLM's names too."""

    default_model: str = ""
    block_size: int = 0
    vllm_names: bool = False


NO_ROUTERS = RouterFigures()


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The exporters to build. `prometheus`: OTEL_METRICS_EXPORTER asks for it, which means `GET /metrics` here.
    `content`: whether spans hold what was said."""

    traces: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    prometheus: bool = False
    content: bool = False
