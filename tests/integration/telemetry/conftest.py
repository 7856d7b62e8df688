"""An environment without OTEL_* variables, and a recorder of spans."""

import pytest

from tests.support.telemetry.otel import SpanRecorder, clear_otel_variables


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    clear_otel_variables(monkeypatch)


@pytest.fixture
def recorder() -> SpanRecorder:
    return SpanRecorder()
