"""The SERVER span around a real Litestar application, its trace context, and bytes that are not text."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from litestar import Litestar, Request, get, post
from litestar.exceptions import HTTPException
from litestar.response import Stream
from litestar.testing import TestClient
from opentelemetry.trace import SpanKind, StatusCode

from adapters.fake.environment import FakeClock
from adapters.otel.pipeline import assemble
from adapters.otel.telemetry import AsgiApp, Telemetry
from application.events import ToolCalled
from tests.support.telemetry.event_script import START_NS, Script
from tests.support.telemetry.otel import MetricRecorder, SpanRecorder, live_figures

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}


class Server:
    """A small application that generates by script."""

    def __init__(self) -> None:
        self.spans = SpanRecorder()
        self.metrics = MetricRecorder()
        self.telemetry: Telemetry = assemble(
            FakeClock(START_NS), live_figures(), self.spans.provider, self.metrics.provider
        )
        self.seen: list[Mapping[str, str]] = []
        assert self.telemetry.middleware is not None
        self.app: AsgiApp = Litestar(self._handlers(), middleware=[self.telemetry.middleware], openapi_config=None)  # type: ignore[assignment,list-item]
        self.client = TestClient(self.app, raise_server_exceptions=False)  # type: ignore[arg-type]

    def _handlers(self) -> list[Any]:
        @post("/v1/chat/completions", status_code=200)
        async def chat() -> Stream:
            self.seen.append(self.telemetry.trace_context())
            for event in Script(carrier=dict(self.seen[-1])).finished():
                self.telemetry.sink.emit(event)

            async def body() -> AsyncIterator[bytes]:
                yield b"data: [DONE]\n\n"

            return Stream(body())

        @post("/v1/mcp/execute", status_code=200)
        async def execute() -> str:
            emit = self.telemetry.sink.emit
            emit(ToolCalled(server="time", tool="now", error_code=None, started_ns=5, at_ns=9))
            emit(ToolCalled(server="time", tool="now", error_code="tool_error", started_ns=5, at_ns=9))
            return "ok"

        @get("/v1/models/{id:str}")
        async def model(id: str, request: Request[Any, Any, Any]) -> dict[str, Any]:
            return {"id": id, "query": request.scope["query_string"].hex(), "odd": request.headers.get("x-odd")}

        @get(["/health/live", "/metrics"])
        async def ok() -> str:
            return "ok"

        @get("/broken")
        async def broken() -> str:
            raise RuntimeError("no")

        @get("/refused")
        async def refused() -> str:
            raise HTTPException("no", status_code=400)

        @get(["/pages/chat/a.js", "/pages/b.css"])
        async def page_file() -> str:
            return ""

        return [chat, execute, model, ok, broken, refused, page_file]


@pytest.fixture
def server() -> Server:
    return Server()


def test_the_request_span_is_a_child_of_the_http_span(server: Server) -> None:
    assert server.client.post("/v1/chat/completions", headers=TRACEPARENT).text == "data: [DONE]\n\n"
    http, chat = server.spans.named("POST /v1/chat/completions"), server.spans.named("chat demo")
    assert http.kind is SpanKind.SERVER
    assert http.parent is not None
    assert f"{http.parent.span_id:016x}" == PARENT_ID
    assert http.context is not None
    assert chat.parent is not None
    assert chat.parent.span_id == http.context.span_id
    assert {f"{span.context.trace_id:032x}" for span in server.spans.spans() if span.context} == {TRACE_ID}
    assert server.seen == [{"traceparent": f"00-{TRACE_ID}-{http.context.span_id:016x}-01"}]
    assert len(server.spans.spans()) == 5  # nothing for receive and send


def test_a_tool_call_is_a_child_of_the_http_span(server: Server) -> None:
    server.client.post("/v1/mcp/execute", headers=TRACEPARENT)
    http = server.spans.named("POST /v1/mcp/execute")
    first, second = [span for span in server.spans.spans() if span.name == "execute_tool now"]
    assert http.context is not None
    for span in (first, second):
        assert span.parent is not None
        assert span.parent.span_id == http.context.span_id
        assert span.attributes is not None
        assert span.attributes["gen_ai.operation.name"] == "execute_tool"
        assert (span.attributes["gen_ai.tool.name"], span.attributes["cairn.tool.server"]) == ("now", "time")
    assert [span.status.status_code for span in (first, second)] == [StatusCode.UNSET, StatusCode.ERROR]
    assert second.attributes is not None
    assert second.attributes["error.type"] == "tool_error"


def test_the_http_span_has_the_stable_names(server: Server) -> None:
    server.client.get("/v1/models/a-name?full=1")
    attributes = server.spans.named("GET /v1/models/{id}").attributes or {}
    expected = {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "http.route": "/v1/models/{id}",
        "url.path": "/v1/models/a-name",
        "url.query": "full=1",
    }
    assert {name: attributes.get(name) for name in expected} == expected


def test_the_route_is_in_the_metrics(server: Server) -> None:
    for name in ("a", "b"):
        server.client.get(f"/v1/models/{name}")
    (attributes,) = server.metrics.points()["http.server.request.duration"]
    assert ("http.route", "/v1/models/{id}") in attributes
    assert ("http.response.status_code", 200) in attributes


def test_all_files_of_pages_are_one_route(server: Server) -> None:
    for path in ("/pages/chat/a.js", "/pages/b.css"):
        assert server.client.get(path).status_code == 200
    (attributes,) = server.metrics.points()["http.server.request.duration"]
    assert ("http.route", "/pages/{file}") in attributes


def test_paths_that_clients_invent_do_not_become_names(server: Server) -> None:
    assert server.client.get("/invented").status_code == 404
    assert server.spans.spans() == ()
    assert "http.server.request.duration" not in server.metrics.points()


def test_health_checks_and_scrapes_are_left_out(server: Server) -> None:
    for path in ("/health/live", "/metrics"):
        assert server.client.get(path).status_code == 200
    assert server.spans.spans() == ()
    assert "http.server.request.duration" not in server.metrics.points()


def test_a_server_error_marks_the_span(server: Server) -> None:
    assert server.client.get("/broken").status_code == 500
    assert server.spans.named("GET /broken").status.status_code is StatusCode.ERROR


def test_a_refusal_is_the_clients_fault_and_no_error_of_the_span(server: Server) -> None:
    assert server.client.get("/refused").status_code == 400
    span = server.spans.named("GET /refused")
    assert span.status.status_code is StatusCode.UNSET
    assert (span.attributes or {})["http.response.status_code"] == 400
    assert span.events == ()


def test_outside_of_a_request_there_is_no_trace_context(server: Server) -> None:
    assert server.telemetry.trace_context() == {}


def ask(app: AsgiApp, query: bytes, headers: list[tuple[bytes, bytes]]) -> list[Any]:
    """A request with raw bytes, as a server hands them on."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/models/x",
        "raw_path": b"/v1/models/x",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "query_string": query,
        "headers": headers,
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000),
        "state": {},
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


def test_values_that_clients_choose_are_cut_in_spans(server: Server) -> None:
    agent = {"user-agent": "a" * 5_000, **TRACEPARENT, "tracestate": f"a={'b' * 250}"}
    assert server.client.get(f"/v1/models/{'x' * 3_000}?{'q' * 3_000}", headers=agent).status_code == 200
    span = server.spans.named("GET /v1/models/{id}")
    assert max(len(str(value)) for value in (span.attributes or {}).values()) <= 500
    assert span.context is not None
    assert (f"{span.context.trace_id:032x}", len(span.context.trace_state["a"])) == (TRACE_ID, 250)


def test_bytes_that_are_not_text_are_traced_and_reach_the_application(server: Server) -> None:
    odd = [(b"user-agent", b"\xff\\x"), (b"x-odd", "ü".encode("latin-1")), (b"traceparent", b"\xff\\"), (b"\xfe", b"1")]
    start, body, *_ = ask(server.app, b"a=\xff", odd)
    assert start["status"] == 200
    assert b'"query":"613dff"' in body["body"]
    assert '"odd":"ü"'.encode() in body["body"]
    assert server.spans.named("GET /v1/models/{id}").parent is None


def test_a_request_that_cannot_be_traced_is_served(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope["path"])

    assert server.telemetry.middleware is not None
    wrapped = server.telemetry.middleware(inner)
    wrapped._instrumented.default_span_details = lambda _: 1 / 0  # type: ignore[attr-defined]
    for _ in range(2):
        ask(wrapped, b"", [])
    assert calls == ["/v1/models/x"] * 2
    assert len([record for record in caplog.records if "could not be traced" in record.message]) == 1


def test_the_applications_own_error_is_not_served_twice(server: Server) -> None:
    calls: list[str] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope["path"])
        raise RuntimeError("its own")

    assert server.telemetry.middleware is not None
    with pytest.raises(RuntimeError, match="its own"):
        ask(server.telemetry.middleware(inner), b"", [])
    assert calls == ["/v1/models/x"]
