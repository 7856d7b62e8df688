"""The spans of decoding, parsing, refusals and records; tests of the tree itself are in test_telemetry_spans."""

from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from adapters.otel.request_spans import MAX_LEFT
from application.events import (
    RecordsDropped,
    RecordsPersisted,
    RequestRefused,
    StepCompleted,
    TokensReceived,
)
from domain.ids import NO_REQUEST, ModelId, RequestId
from domain.request.request import RequestKind
from tests.support.telemetry.event_script import START_NS, Script, at
from tests.support.telemetry.otel import SpanRecorder

SCRIPT = Script()
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CARRIER = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}


def story(recorder: SpanRecorder) -> tuple[str, list[str]]:
    """The request's span and, in order, those below it; each with a mark when it failed."""

    def reported(span: ReadableSpan) -> str:
        return f"{span.name}!" if span.status.status_code is StatusCode.ERROR else span.name

    (root,) = [span for span in recorder.spans() if span.name.startswith(("chat", "text_completion"))]
    below = [span for span in recorder.spans() if span is not root and span.name != "persist"]
    assert root.context is not None
    assert all(span.parent is not None and span.parent.span_id == root.context.span_id for span in below)
    return reported(root), [reported(span) for span in below]


def step(size: int, seconds: float) -> StepCompleted:
    started = at(seconds - 0.25)
    return StepCompleted(
        num_prefill_tokens=0,
        num_decode_tokens=size,
        started_ns=started,
        at_ns=at(seconds),
    )


def test_an_error_of_the_parser_marks_its_span_and_the_phase(recorder: SpanRecorder) -> None:
    failed = SCRIPT.parsed(SCRIPT.failed(4.0), has_failed=True)
    sink = recorder.play([*SCRIPT.prefilled(), SCRIPT.first_token(), failed])
    assert sink.num_open() == 0
    assert story(recorder) == ("chat demo!", ["queue", "prefill", "parse!", "decode!"])


def test_a_refusal_belongs_to_its_http_request_and_names_its_reason_and_no_more(recorder: SpanRecorder) -> None:
    name = ModelId("invented " + "x" * 500)
    recorder.play([RequestRefused(name, "model_not_found", at(0.5), at(0), RequestKind.TEXT, CARRIER)])
    (span,) = recorder.spans()
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT_ID
    assert span.name == "text_completion"
    assert (span.status.description, span.end_time or 0) == ("model_not_found", (span.start_time or 0) + 500_000_000)
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "cairn",
        "gen_ai.request.model": name[:200],
        "error.type": "model_not_found",
        "cairn.ended_in": "refused",
    }


@pytest.mark.parametrize(
    ("kind", "operation"), [(RequestKind.EMBEDDINGS, "embeddings"), (RequestKind.SCORES, "rerank")]
)
def test_vectors_and_scores_have_a_span_of_their_own_without_sampling(
    recorder: SpanRecorder, kind: RequestKind, operation: str
) -> None:
    recorder.play([replace(SCRIPT.queued(), kind=kind), SCRIPT.admitted(), SCRIPT.ended(3.0)])
    root = next(span for span in recorder.spans() if span.parent is None)
    attributes = dict(root.attributes or {})
    assert root.name == f"{operation} demo"
    assert attributes["gen_ai.operation.name"] == operation
    assert attributes["gen_ai.usage.input_tokens"] == 1025
    assert not {"gen_ai.request.temperature", "gen_ai.output.type"} & attributes.keys()


def test_the_decode_span_has_its_rate_and_batch_sizes(recorder: SpanRecorder) -> None:
    others = [RequestId(f"other-{n}") for n in range(9)]
    recorder.play(
        [
            step(9, 1.5),  # before it decoded
            *SCRIPT.prefilled(),
            SCRIPT.first_token(),
            TokensReceived(((SCRIPT.id, 1), (others[0], 1)), at(2.25)),
            step(2, 2.25),
            TokensReceived(((others[0], 1), (SCRIPT.id, 2), (others[1], 1)), at(2.5)),
            step(4, 2.5),
            step(3, 3.0),
            SCRIPT.ended(seconds=3.5),
        ],
    )
    assert dict(recorder.named("decode").attributes or {}) == {
        "gen_ai.usage.output_tokens": 9,
        "cairn.decode.tokens": 3,
        "cairn.decode.rate": 3 / 1.5,
        "cairn.decode.steps": 3,
        "cairn.decode.batch.mean": 3.0,
        "cairn.decode.batch.max": 4,
    }


def test_images_are_in_the_request_s_span_and_passes_of_the_tower_in_its_prefill(recorder: SpanRecorder) -> None:
    seen = [SCRIPT.queued(), SCRIPT.admitted(), SCRIPT.images_matched(), SCRIPT.image_seen(), SCRIPT.second_chunk()]
    recorder.play([*seen, SCRIPT.decode_started(), SCRIPT.ended()])
    counts = {"cairn.images": 2, "cairn.image.tokens": 134, "cairn.image.reused_tokens": 67}
    assert counts.items() <= dict(recorder.named("chat demo").attributes or {}).items()
    events = {event.name: dict(event.attributes or {}) for event in recorder.named("prefill").events}
    assert events["cairn.images.matched"] == counts
    assert events["cairn.image.seen"] == {
        "cairn.image.tokens": 67,
        "cairn.image.size": 68_608,
        "cairn.image.tower_time": 0.125,
    }


def test_the_parse_span_has_its_parser_calls_and_problems(recorder: SpanRecorder) -> None:
    recorder.play([*SCRIPT.prefilled(), SCRIPT.first_token(), SCRIPT.parsed(SCRIPT.ended())])
    span = recorder.named("parse")
    assert dict(span.attributes or {}) == {
        "cairn.parser": "json",
        "cairn.parse.time": 0.003,
        "cairn.tool_calls": 2,
        "cairn.tool_call.problems": ("unknown_tool", "unknown_tool"),
        "cairn.repeated_tokens": 7,
    }


def persisted(num: int, seconds: float, offered_at: float, id: RequestId = SCRIPT.id) -> RecordsPersisted:
    return RecordsPersisted(
        num_records=num,
        raw_bytes=num * 100,
        started_ns=at(seconds - 0.1),
        at_ns=at(seconds),
        offered_ns=at(offered_at),
        id=id,
    )


def test_a_persist_span_lasts_from_the_offer_until_its_records_are_settled_also_after_the_request(
    recorder: SpanRecorder,
) -> None:
    sink = recorder.play([*SCRIPT.prefilled(), persisted(2, 1.75, 1.5), SCRIPT.ended(seconds=4.0)])
    for event in (persisted(1, 6.0, 2.0), RecordsDropped(3, "full", at(7.0), SCRIPT.id)):
        sink.emit(event)
    spans, root = [span for span in recorder.spans() if span.name == "persist"], recorder.named("chat demo")
    offset = (root.start_time or 0) - START_NS
    times = [((span.start_time or 0) - offset, (span.end_time or 0) - offset) for span in spans]
    assert times == [(at(1.5), at(1.75)), (at(2.0), at(6.0)), (at(7.0), at(7.0))]
    assert root.context is not None
    assert {span.parent.span_id for span in spans if span.parent} == {root.context.span_id}
    assert [dict(span.attributes or {}) for span in spans] == [
        {"cairn.records.persisted": 2, "cairn.state.size": 200},
        {"cairn.records.persisted": 1, "cairn.state.size": 100},
        {"cairn.records.dropped": 3, "cairn.reason": "full"},
    ]


def test_records_of_no_request_or_of_one_long_ago_have_no_span(recorder: SpanRecorder) -> None:
    sink = recorder.play([SCRIPT.queued(), SCRIPT.ended(), persisted(1, 2.0, 2.0, NO_REQUEST)])
    for number in range(MAX_LEFT):
        other = Script(f"other-{number}")
        for event in (other.queued(), other.ended()):
            sink.emit(event)
    sink.emit(persisted(1, 2.0, 2.0))
    assert "persist" not in [span.name for span in recorder.spans()]
