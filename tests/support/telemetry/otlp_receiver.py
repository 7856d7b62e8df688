"""An OpenTelemetry collector's ear: takes OTLP over HTTP, and answers 400 to whatever the specification forbids."""

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.telemetry.otlp_rules import problems_of_metrics, problems_of_traces

_SIGNALS: dict[str, tuple[type[Message], Callable[[Any], Iterator[str]]]] = {
    "/v1/traces": (ExportTraceServiceRequest, problems_of_traces),
    "/v1/metrics": (ExportMetricsServiceRequest, problems_of_metrics),
}


class OtlpReceiver(ThreadingHTTPServer):
    """`problems`: what was wrong with what came, by signal. Read what came when its sender has shut down."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.problems: list[str] = []
        self._taken: dict[str, list[Any]] = {path: [] for path in _SIGNALS}

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def take(self, path: str, content_type: str, body: bytes) -> list[str]:
        """Problems of one request; none means that it is kept."""
        if path not in _SIGNALS:
            return [f"{path}: no signal"]
        if content_type != "application/x-protobuf":
            return [f"{path}: {content_type}"]
        kind, problems_of = _SIGNALS[path]
        try:
            request = kind.FromString(body)
        except DecodeError as error:
            return [f"{path}: {error}"]
        problems = [f"{path}: {problem}" for problem in problems_of(request)]
        self._taken[path].append(request)
        return problems

    @property
    def spans(self) -> list[Any]:
        parts = [part for request in self._taken["/v1/traces"] for part in request.resource_spans]
        return [span for part in parts for scope in part.scope_spans for span in scope.spans]

    @property
    def metrics(self) -> dict[str, Any]:
        """By name, as they came last."""
        parts = [part for request in self._taken["/v1/metrics"] for part in request.resource_metrics]
        return {metric.name: metric for part in parts for scope in part.scope_metrics for metric in scope.metrics}

    def sent(self) -> bytes:
        """Everything, to look for what must not be in it."""
        requests = [request for taken in self._taken.values() for request in taken]
        return b"\n".join(request.SerializeToString() for request in requests)


class _Handler(BaseHTTPRequestHandler):
    server: OtlpReceiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        problems = self.server.take(self.path, self.headers.get("content-type", ""), body)
        self.server.problems += problems
        self.send_response(400 if problems else 200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """One that runs until the block ends."""
    receiver = OtlpReceiver()
    thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.02}, name="otlp")
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        receiver.server_close()
        thread.join()
