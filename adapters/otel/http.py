"""The SERVER span and the HTTP metrics of a request, by OpenTelemetry's ASGI instrumentation, and its trace context.

Health checks and metrics scrapes are left out. The instrumentation decodes headers and the query as UTF-8 and raises
where they are not; a client's bytes must never cost it an answer, so what is not ASCII is hidden from it, and if it
fails all the same the request is served untraced. The application always sees the request as it came.

The response names its trace (`traceresponse`), so that the client can find it.

It is Litestar middleware: the route is known when the span starts, so it is in the span's name and in the metrics.
Requests that match no route do not reach it.
"""

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from opentelemetry import propagate
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, TracerProvider, get_current_span

from adapters.otel import semconv as names
from adapters.otel.telemetry import AsgiApp, Message, Receive, Send
from domain.printable import PRINTABLE_CHARS

EXCLUDED_PATHS = ("/health", "/metrics")

PAGE_FILES = "/pages/"
"""The files of pages have one route, as one label of metrics: each has a handler of its own."""

_SCOPE = "cairn.scope"
_OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
_CONTEXT = frozenset({b"traceparent", b"tracestate", b"baggage", b"b3"})
_SECRET = frozenset({b"authorization", b"x-api-key", b"cookie"})
"""Headers that are hidden from the instrumentation, whatever it is configured to capture."""
_SECRETIVE = re.compile(rb"key|token|auth|secret", re.IGNORECASE)
"""Queries that may hold a key by mistake; they are left out of spans."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})

_logger = logging.getLogger("cairn.telemetry")


def current_carrier() -> Mapping[str, str]:
    """W3C trace context headers of the span that is current in this task; empty without one."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


class HttpTracing:
    """ASGI middleware. Event loop only."""

    def __init__(self, app: AsgiApp, tracer_provider: TracerProvider, meter_provider: MeterProvider) -> None:
        os.environ.setdefault(_OPT_IN, "http")  # its only switch for the stable names; read on construction
        self._app = app
        self._has_failed = False
        self._instrumented = OpenTelemetryMiddleware(
            self._enter,
            default_span_details=_span_details,
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            exclude_spans=["receive", "send"],
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_excluded(scope["path"]):
            await self._app(scope, receive, send)
            return
        traced: dict[str, Any] = {**_plain(scope), _SCOPE: scope}
        try:
            await self._instrumented(traced, receive, send)
        except Exception as error:
            if _SCOPE not in traced:  # the application was entered: its own error
                raise
            self._note(error)
            await self._app(scope, receive, send)

    async def _enter(self, traced: Message, receive: Receive, send: Send) -> None:
        scope: Message = traced.pop(_SCOPE)

        async def send_traced(message: Message) -> None:
            header = _traceresponse(get_current_span()) if message["type"] == "http.response.start" else None
            if header is not None:
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        await self._app(scope, receive, send_traced)

    def _note(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            _logger.error("a request could not be traced; later ones are not reported", exc_info=error)


def _traceresponse(span: Span) -> tuple[bytes, bytes] | None:
    """The header that names the trace of a response, as drafted by the W3C; None without a trace."""
    context = span.get_span_context()
    if not context.is_valid:
        return None
    value = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return b"traceresponse", value.encode()


def _is_excluded(path: str) -> bool:
    return any(path == excluded or path.startswith(f"{excluded}/") for excluded in EXCLUDED_PATHS)


def _plain(scope: Message) -> Message:
    """The scope without the bytes that the instrumentation cannot decode, and with nothing that makes a span long."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    query: bytes = scope.get("query_string", b"")
    query = query[:PRINTABLE_CHARS] if query.isascii() and not _SECRETIVE.search(query) else b""
    plain = [(name, _cut(name, value)) for name, value in headers if _is_traced(name, value)]
    short = {"path": scope["path"][:PRINTABLE_CHARS], "raw_path": scope.get("raw_path", b"")[:PRINTABLE_CHARS]}
    return {**scope, **short, "headers": plain, "query_string": query}


def _is_traced(name: bytes, value: bytes) -> bool:
    return name.isascii() and value.isascii() and name not in _SECRET


def _cut(name: bytes, value: bytes) -> bytes:
    """Headers are cut; trace context is kept whole."""
    return value if name in _CONTEXT else value[:PRINTABLE_CHARS]


def _span_details(scope: Message) -> tuple[str, dict[str, str]]:
    """The span is named after the path template that the router matched, never the path itself: clients choose it."""
    method = str(scope.get("method", ""))
    method, route = method if method in _METHODS else "HTTP", str(scope.get("path_template", ""))
    route = f"{PAGE_FILES}{{file}}" if route.startswith(PAGE_FILES) else route
    return (f"{method} {route}", {names.HTTP_ROUTE: route}) if route else (method, {})
