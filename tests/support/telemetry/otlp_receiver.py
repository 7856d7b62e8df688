"""An OpenTelemetry collector that takes OTLP over HTTP and answers 400 to what is no OTLP."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_SIGNALS: dict[str, type[Message]] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
}


class OtlpReceiver(ThreadingHTTPServer):
    """`problems`: the refused requests. `taken`: the others, by path; read it when the sender has shut down."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.problems: list[str] = []
        self.taken: dict[str, list[Any]] = {path: [] for path in _SIGNALS}

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list[Any]:
        parts = [part for request in self.taken["/v1/traces"] for part in request.resource_spans]
        return [span for part in parts for scope in part.scope_spans for span in scope.spans]


class _Handler(BaseHTTPRequestHandler):
    server: OtlpReceiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        problem = ""
        try:
            assert self.headers["content-type"] == "application/x-protobuf"
            self.server.taken[self.path].append(_SIGNALS[self.path].FromString(body))
        except (AssertionError, KeyError, DecodeError) as error:
            problem = f"{self.path}: {error!r}"
            self.server.problems.append(problem)
        self.send_response(400 if problem else 200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A receiver that runs until the block ends."""
    receiver = OtlpReceiver()
    thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.02}, name="otlp")
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        receiver.server_close()
        thread.join()
