"""The signals that OTEL_* variables switch on; off means not even imported. Real export: test_telemetry_wire."""

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from adapters.fake.environment import FakeClock
from adapters.otel import pipeline
from adapters.otel.pipeline import build_resource
from adapters.otel.setup import CAPTURE_CONTENT, build_telemetry, plan_exports
from adapters.otel.telemetry import ExportPlan
from application.services.event_sinks import EventFanOut
from application.settings import TelemetrySettings
from tests.support.telemetry.event_script import START_NS, Script
from tests.support.telemetry.otel import live_figures

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
ALL = ExportPlan(("otlp",), ("otlp",))


@pytest.mark.parametrize(
    ("environment", "plan"),
    [
        ({}, ExportPlan()),
        (ENDPOINT, ALL),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, ExportPlan(("otlp",))),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ExportPlan(("otlp",))),
        ({"OTEL_TRACES_EXPORTER": " Console , otlp,otlp"}, ExportPlan(("console", "otlp"))),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, ExportPlan((), ("otlp",))),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, ExportPlan(("otlp",))),
        ({"OTEL_TRACES_EXPORTER": "otlp", CAPTURE_CONTENT: "span_only"}, ExportPlan(("otlp",), content=True)),
        ({"OTEL_TRACES_EXPORTER": "otlp", CAPTURE_CONTENT: "true"}, ExportPlan(("otlp",), content=True)),
        ({"OTEL_TRACES_EXPORTER": "otlp", CAPTURE_CONTENT: "no_content"}, ExportPlan(("otlp",))),
        ({CAPTURE_CONTENT: "span_only"}, ExportPlan()),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, ExportPlan(prometheus=True)),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ALL),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, ExportPlan()),
    ],
)
def test_the_standard_variables_decide(environment: dict[str, str], plan: ExportPlan) -> None:
    assert plan_exports(environment) == plan


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin is not supported"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc is not supported"),
        ({CAPTURE_CONTENT: "event_only"}, f"{CAPTURE_CONTENT}=EVENT_ONLY is not supported"),
    ],
)
def test_unsupported_values_are_logged_and_ignored(
    environment: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert plan_exports(environment) == ExportPlan()
    assert said in caplog.text


def test_the_service_is_named_cairn_unless_the_operator_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(environment: dict[str, str]) -> object:
        with monkeypatch.context() as patch:
            for key, value in environment.items():
                patch.setenv(key, value)
            return build_resource(environment).attributes["service.name"]

    assert name({}) == "cairn"
    assert name({"OTEL_SERVICE_NAME": "mine"}) == "mine"
    assert name({"OTEL_RESOURCE_ATTRIBUTES": "a=b,service.name=theirs"}) == "theirs"


OFF = """
import os, sys
os.environ.update({environment!r})
from adapters.fake.environment import FakeClock
from adapters.otel.setup import build_telemetry
from application.settings import TelemetrySettings
from application.services.event_sinks import EventFanOut, NullEvents
from application.services.live_figures import LiveFigures
from application.services.request_timelines import RequestTimelines
from tests.support.telemetry.event_script import Script

figures = LiveFigures(FakeClock(), RequestTimelines())
telemetry = build_telemetry(TelemetrySettings({enabled}, {metrics}), FakeClock(), figures)
for event in Script().finished():
    telemetry.sink.emit(event)
assert isinstance(telemetry.sink, NullEvents)
assert telemetry.middleware is None and telemetry.metrics_text is None and telemetry.trace_context() == {{}}
telemetry.shutdown()
import threading
assert threading.active_count() == 1
print(sorted(name for name in sys.modules if name.startswith(("opentelemetry", "prometheus_client"))))
"""


@pytest.mark.parametrize(
    ("environment", "enabled", "metrics"),
    [
        ({}, True, False),
        (ENDPOINT, False, True),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, True, True),
    ],
)
def test_off_means_nothing_is_imported_or_created(environment: dict[str, str], enabled: bool, metrics: bool) -> None:
    code = OFF.format(environment=environment, enabled=enabled, metrics=metrics)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_by_default_metrics_are_served_and_nothing_is_traced() -> None:
    telemetry = build_telemetry(TelemetrySettings(), FakeClock(), live_figures())
    assert telemetry.metrics_text is not None
    assert b"cairn_ready 0.0" in telemetry.metrics_text("").body
    assert telemetry.trace_context() == {}
    telemetry.shutdown()
    telemetry.shutdown()


def test_servers_in_one_process_do_not_mix() -> None:
    counted, other = live_figures(), live_figures()
    first, second = (build_telemetry(TelemetrySettings(), FakeClock(), figures) for figures in (counted, other))
    for event in Script().finished():
        EventFanOut(counted.timelines, first.sink, counted).emit(event)
    assert first.metrics_text is not None
    assert second.metrics_text is not None
    assert b"cairn_output_tokens_total{" in first.metrics_text("").body
    assert b"cairn_output_tokens_total{" not in second.metrics_text("").body
    first.shutdown()
    second.shutdown()


class Collector(ThreadingHTTPServer):
    """Answers once it may."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.may_answer = threading.Event()


class CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.may_answer.wait()
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def hanging_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the variables point at and that does not answer."""
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        yield server
    finally:
        server.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_collector_that_never_answers_does_not_keep_the_server_from_ending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipeline, "SHUTDOWN_TIMEOUT_S", 0.2)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    with hanging_collector(monkeypatch), caplog.at_level(logging.WARNING, "cairn.telemetry"):
        figures = live_figures()
        telemetry = build_telemetry(TelemetrySettings(), FakeClock(START_NS), figures)
        for event in Script().finished():
            EventFanOut(figures.timelines, telemetry.sink).emit(event)
        telemetry.shutdown()  # returns while the collector still keeps its answer back
        assert "not exported completely" in caplog.text
