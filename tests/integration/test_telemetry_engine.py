"""The engine's own events, from a server on a socket, make closed trees and metrics that add up."""

import pytest
from opentelemetry.sdk.metrics.export import NumberDataPoint
from opentelemetry.trace import StatusCode

from adapters.fake.clock import FakeClock
from adapters.fake.options import FakeOptions
from adapters.otel.spans import SpanEvents
from domain.errors import ComputeFailed
from domain.ids import SequenceId
from domain.scheduling import StepLimits
from tests.support.fake_service import fake_service
from tests.support.otel import MetricRecorder, SpanRecorder, clear_otel_variables

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CARRIER = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    clear_otel_variables(monkeypatch)


def fail_second_decode(operation: str, id: SequenceId | None, count: int) -> None:
    if operation == "decode" and count == 1:
        raise ComputeFailed("on purpose")


def ask(options: FakeOptions, prompt: str, max_tokens: int) -> tuple[SpanRecorder, MetricRecorder]:
    """Everything telemetry makes of one completion."""
    spans, metrics = SpanRecorder(), MetricRecorder()
    limits = StepLimits(max_batch=4, prefill_budget=64, grid=64)
    with fake_service(options, limits=limits, trace_context=lambda: CARRIER) as service:
        body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
        service.client.post("/v1/completions", json=body)
        service.wait_until_idle()
        span_sink = SpanEvents(spans.provider.get_tracer("test"), FakeClock())
        metric_sink = metrics.sink()
        for event in service.events.events:
            span_sink.emit(event)
            metric_sink.emit(event)
    assert span_sink.num_open() == 0
    assert span_sink.failures() == metric_sink.failures() == {}
    return spans, metrics


def total(metrics: MetricRecorder, name: str) -> float:
    points = metrics.points().get(name, {}).values()
    return sum(point.value for point in points if isinstance(point, NumberDataPoint))


def test_a_completion_is_traced_below_its_http_request() -> None:
    spans, metrics = ask(FakeOptions(), "x" * 200, 5)
    root = spans.named("text_completion fake-attention")
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == PARENT_ID
    for name in ("queue", "prefill", "decode"):
        span = spans.named(name)
        assert span.parent is not None
        assert root.context is not None
        assert span.parent.span_id == root.context.span_id
    attributes = root.attributes or {}
    num_prompt = attributes["gen_ai.usage.input_tokens"]
    assert isinstance(num_prompt, int)
    assert attributes["gen_ai.usage.output_tokens"] == 5
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    prefill = spans.named("prefill")
    chunks = [event.attributes or {} for event in prefill.events if event.name == "cairn.prefill.chunk"]
    assert [chunk["cairn.chunk.start"] for chunk in chunks] == list(range(0, num_prompt, 64))
    assert (prefill.attributes or {})["cairn.prompt.computed_tokens"] == num_prompt
    assert total(metrics, "cairn.prompt.tokens") == num_prompt
    assert total(metrics, "cairn.output.tokens") == 5
    assert total(metrics, "cairn.step.tokens") == num_prompt + 5
    assert total(metrics, "cairn.requests.running") == total(metrics, "cairn.requests.waiting") == 0


def test_a_failure_while_decoding_is_a_failed_tree() -> None:
    spans, metrics = ask(FakeOptions(hook=fail_second_decode), "hello", 5)
    root = spans.named("text_completion fake-attention")
    assert root.status.status_code is StatusCode.ERROR
    assert root.status.description == "on purpose"
    assert (root.attributes or {})["error.type"] == "compute_failed"
    assert (root.attributes or {})["cairn.ended_in"] == "decode"
    assert spans.named("queue").status.status_code is StatusCode.UNSET
    assert total(metrics, "cairn.requests.ended") == 1
