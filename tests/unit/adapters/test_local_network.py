"""The message of a connection that macOS refuses to an agent, in the shared store's errors and the exporters' log."""

import logging
import socket
from types import SimpleNamespace

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from adapters.fake.environment import FakeClock
from adapters.otel.pipeline import build_pipeline
from adapters.otel.telemetry import ExportPlan
from adapters.resp.connection import RespConnection
from application.ports.shared_store import SharedFailure, SharedStoreError
from application.services import faults
from tests.support.telemetry.otel import live_figures

HINT = "System Settings, Privacy & Security, Local Network"


@pytest.fixture(params=["darwin", "linux"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every connection fails as one to the local network does on macOS."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(65, "No route to host")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(faults, "sys", SimpleNamespace(platform=request.param))
    return str(request.param)


def test_the_shared_stores_error_says_what_to_allow(platform: str) -> None:
    with pytest.raises(SharedStoreError, match="No route to host") as raised:
        RespConnection("redis://cache.local:6379", None, 1.0).run([("PING",)])
    assert raised.value.failure is SharedFailure.UNREACHABLE
    assert (HINT in str(raised.value)) is (platform == "darwin")


def test_the_exporters_log_says_what_to_allow(
    platform: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.local:4318")
    build_pipeline(ExportPlan(), True, FakeClock(), live_figures()).shutdown()
    exporter = OTLPSpanExporter()

    class LeavesAtOnce(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logger.removeHandler(self)
            exporter.shutdown()  # it would try again for ten seconds

    logger = logging.getLogger(OTLPSpanExporter.__module__)
    logger.addHandler(LeavesAtOnce())
    exporter.export([])
    assert "No route to host" in caplog.text
    assert (HINT in caplog.text) is (platform == "darwin")
