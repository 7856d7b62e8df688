"""The span tree of a request, driven through its events by hand and read from the SDK's in-memory exporter."""

from dataclasses import replace
from typing import cast

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from adapters.fake.environment import FakeClock
from adapters.otel.request_spans import SpanEvents
from application.events import (
    Event,
    PrefixAwaited,
    PrefixMatched,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    StateCaptured,
    StateRestored,
)
from domain.ids import ModelId, RequestId
from domain.request.request import Usage
from domain.request.sampling import SamplingParams, StopRules
from tests.support.telemetry.event_script import START_NS, Script, at
from tests.support.telemetry.otel import OFFSET_NS, SpanRecorder


def play(recorder: SpanRecorder, events: list[Event]) -> None:
    assert recorder.play(events).num_open() == 0


def times(span: ReadableSpan) -> tuple[float, float]:
    """Seconds from queued to the span's start and end."""
    assert span.start_time is not None
    assert span.end_time is not None
    origin = OFFSET_NS + START_NS
    return (span.start_time - origin) / 1e9, (span.end_time - origin) / 1e9


def tree(recorder: SpanRecorder) -> dict[str, tuple[float, float]]:
    """Times by span name; every span but the first is a child of the request's."""
    *phases, root = recorder.spans()
    assert root.context is not None
    for phase in phases:
        assert phase.parent is not None
        assert phase.parent.span_id == root.context.span_id
        assert phase.context is not None
        assert phase.context.trace_id == root.context.trace_id
    return {span.name: times(span) for span in (root, *phases)}


def test_a_finished_request_is_one_tree_with_exact_times(recorder: SpanRecorder) -> None:
    play(recorder, Script().finished())
    assert tree(recorder) == {
        "chat demo": (0.0, 4.25),
        "queue": (0.0, 1.0),
        "prefill": (1.0, 2.0),
        "decode": (2.0, 4.25),
    }
    assert all(span.kind is SpanKind.INTERNAL for span in recorder.spans())
    assert all(span.status.status_code is StatusCode.UNSET for span in recorder.spans())


def test_the_request_span_follows_the_genai_conventions(recorder: SpanRecorder) -> None:
    sampling = SamplingParams(temperature=0.5, top_p=0.9, top_k=40, frequency_penalty=0.25, seed=7)
    play(recorder, Script(sampling=sampling, stop=StopRules(max_tokens=64, stop=("END",))).finished())
    assert dict(recorder.named("chat demo").attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "cairn",
        "gen_ai.output.type": "text",
        "gen_ai.request.model": "alias",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 40,
        "gen_ai.request.frequency_penalty": 0.25,
        "gen_ai.request.seed": 7,
        "gen_ai.request.max_tokens": 64,
        "cairn.request.stop_sequences": 1,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "demo",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 2.25,
        "gen_ai.usage.input_tokens": 1025,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "cairn.ended_in": "decode",
    }


def test_the_request_span_counts_draft_tokens_where_there_were_any(recorder: SpanRecorder) -> None:
    *before, ended = Script().finished()
    usage = Usage(1025, 9, proposed={"ngram": 6, "mtp": 4}, accepted={"ngram": 5})
    play(recorder, [*before, replace(cast("RequestEnded", ended), usage=usage)])
    attributes = dict(recorder.named("chat demo").attributes or {})
    assert attributes["cairn.speculation.proposed_tokens"] == 10
    assert attributes["cairn.speculation.accepted_tokens"] == 5


def test_phases_carry_chunks_and_the_first_token(recorder: SpanRecorder) -> None:
    play(recorder, Script().finished())
    prefill, decode = recorder.named("prefill"), recorder.named("decode")
    assert dict(prefill.attributes or {}) == {
        "cairn.prompt.reused_tokens": 0,
        "cairn.prefill.chunks": 2,
        "cairn.prompt.computed_tokens": 1025,
    }
    chunks = [(event.name, dict(event.attributes or {}), event.timestamp - OFFSET_NS) for event in prefill.events]
    assert chunks == [
        (
            "cairn.prefill.chunk",
            {"cairn.chunk.start": 0, "cairn.chunk.end": 512, "cairn.chunk.duration": 0.5},
            at(1.5),
        ),
        (
            "cairn.prefill.chunk",
            {"cairn.chunk.start": 512, "cairn.chunk.end": 1025, "cairn.chunk.duration": 0.5},
            at(2.0),
        ),
    ]
    assert [(event.name, event.timestamp - OFFSET_NS) for event in decode.events] == [("cairn.first_token", at(2.25))]
    assert dict(decode.attributes or {}) == {"gen_ai.usage.output_tokens": 9}


def test_without_a_carrier_each_request_is_a_trace_of_its_own(recorder: SpanRecorder) -> None:
    play(recorder, [*Script("a").finished(), *Script("b").finished()])
    assert len({span.context.trace_id for span in recorder.spans() if span.context}) == 2


SCRIPT = Script()
ENDINGS = {
    "queue": [SCRIPT.queued()],
    "prefill": [SCRIPT.queued(), SCRIPT.admitted(), SCRIPT.first_chunk()],
    "decode": [*SCRIPT.prefilled(), SCRIPT.first_token()],
}


@pytest.mark.parametrize("phase", ENDINGS)
def test_a_cancelled_request_closes_its_tree_in_the_phase_it_was_in(recorder: SpanRecorder, phase: str) -> None:
    play(recorder, [*ENDINGS[phase], SCRIPT.ended("cancelled", seconds=3.0)])
    spans = tree(recorder)
    assert list(spans)[-1] == phase
    assert spans[phase][1] == spans["chat demo"][1] == 3.0
    assert len(spans) == 2 + list(ENDINGS).index(phase)
    root = recorder.named("chat demo").attributes or {}
    assert root["cairn.ended_in"] == phase
    assert root["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert "error.type" not in root
    assert all(span.status.status_code is StatusCode.UNSET for span in recorder.spans())


@pytest.mark.parametrize("phase", ENDINGS)
def test_a_failure_marks_the_request_and_the_phase_it_happened_in(recorder: SpanRecorder, phase: str) -> None:
    play(recorder, [*ENDINGS[phase], SCRIPT.failed(3.0)])
    failed = {span.name: span for span in recorder.spans() if span.status.status_code is StatusCode.ERROR}
    assert set(failed) == {"chat demo", phase}
    for span in failed.values():
        assert (span.attributes or {})["error.type"] == "compute_failed"
        assert span.status.description == "the matrix\nis singular"
    assert (recorder.named("chat demo").attributes or {})["gen_ai.response.finish_reasons"] == ("error",)


def test_a_preempted_request_waits_and_prefills_again(recorder: SpanRecorder) -> None:
    resumed = replace(SCRIPT.first_chunk(), end=1030, is_resumed=True, at_ns=at(3.8))
    again = [RequestPreempted(SCRIPT.id, at(3.0)), SCRIPT.admitted(3.5), resumed]
    again.append(replace(SCRIPT.decode_started(), at_ns=at(4.0)))
    play(recorder, [*SCRIPT.finished()[:-1], *again, SCRIPT.ended()])
    phases = [(span.name, times(span)) for span in recorder.spans() if span.name != "chat demo"]
    assert phases == [
        ("queue", (0.0, 1.0)),
        ("prefill", (1.0, 2.0)),
        ("decode", (2.0, 3.0)),
        ("queue", (3.0, 3.5)),
        ("prefill", (3.5, 4.0)),
        ("decode", (4.0, 4.25)),
    ]


def test_reuse_of_a_prefix_shows_in_the_tree(recorder: SpanRecorder) -> None:
    id, owner = SCRIPT.id, Script("owner")
    play(
        recorder,
        [
            owner.queued(),
            SCRIPT.queued(),
            PrefixAwaited(id, owner.id, 512, at(0.25)),
            owner.ended(),
            StateRestored(
                id=id,
                position=768,
                size_bytes=3_000_000,
                started_ns=at(0.5),
                fetched_ns=at(0.75),
                at_ns=at(0.875),
                tier_bytes={"hot": 1_000_000, "store": 2_000_000},
            ),
            PrefixMatched(
                id=id,
                num_prompt=1025,
                reused={"hot": 512, "store": 256},
                num_known=1024,
                reason="no-snapshot",
                started_ns=at(0.25),
                at_ns=at(0.9),
                diverged_at=1024,
            ),
            SCRIPT.admitted(),
            StateCaptured(
                id=id, num_blocks=2, num_snapshots=1, size_bytes=4_000_000, started_ns=at(1.0), at_ns=at(1.5)
            ),
            SCRIPT.ended(),
        ],
    )
    lookup, restore, prefill = (recorder.named(name) for name in ("prefix lookup", "restore", "prefill"))
    (request,) = [span for span in recorder.spans() if (span.attributes or {}).get("gen_ai.response.id") == id]
    assert request.context is not None
    for span in (lookup, restore, prefill):
        assert span.parent is not None
        assert span.parent.span_id == request.context.span_id
    assert times(restore) == (0.5, 0.875)
    assert dict(restore.attributes or {}) == {
        "cairn.state.position": 768,
        "cairn.state.size": 3_000_000,
        "cairn.compute.time": 0.125,
        "cairn.restore.hot_size": 1_000_000,
        "cairn.restore.store_size": 2_000_000,
        "cairn.restore.rate": 8_000_000.0,
    }
    assert times(lookup) == (0.25, pytest.approx(0.9))
    assert dict(lookup.attributes or {}) == {
        "cairn.prompt.live_tokens": 0,
        "cairn.prompt.hot_tokens": 512,
        "cairn.prompt.store_tokens": 256,
        "cairn.prompt.shared_store_tokens": 0,
        "cairn.prompt.known_tokens": 1024,
        "cairn.prompt.diverged_at": 1024,
        "cairn.cache.stop_reason": "no-snapshot",
    }
    assert (request.attributes or {})["cairn.cache.stop_reason"] == "no-snapshot"
    assert [event.name for event in prefill.events] == ["cairn.state.captured"]
    (owner_span,) = [span for span in recorder.spans() if (span.attributes or {}).get("gen_ai.response.id") == "owner"]
    assert [link.context for link in request.links] == [owner_span.context]


def test_events_of_unknown_requests_change_nothing(recorder: SpanRecorder) -> None:
    play(recorder, [SCRIPT.admitted(), SCRIPT.first_chunk(), SCRIPT.first_token(), SCRIPT.ended(), SCRIPT.ended()])
    assert recorder.spans() == ()


def test_client_text_is_cut_and_encodable(recorder: SpanRecorder) -> None:
    """Protobuf refuses lone surrogates, and with them a whole batch."""
    script = Script()
    named = replace(script.queued(), requested_model=ModelId("a\ud800\n" + "x" * 2**20))
    failed = replace(script.failed(3.0, num_output=5), error_message="\ud800" + "y" * 2**20)
    play(recorder, [named, script.admitted(), failed])
    span = recorder.named("chat demo")
    reported = [str((span.attributes or {})["gen_ai.request.model"]), span.status.description or ""]
    assert [text[:5] for text in reported] == ["a?\nxx", "?yyyy"]
    assert [len(text) for text in reported] == [200, 1_000]


def test_memory_is_bounded_by_closing_the_oldest_tree(recorder: SpanRecorder) -> None:
    sink = recorder.sink(max_open=2)
    for id in ("a", "b", "c"):
        sink.emit(Script(id).queued())
    assert sink.num_open() == 2
    root = recorder.named("chat demo")
    assert (root.attributes or {})["gen_ai.response.id"] == "a"
    assert (root.attributes or {})["cairn.incomplete"] is True
    sink.emit(Script("a").ended())
    assert len(recorder.spans()) == 2


def test_closing_ends_what_is_open_at_its_last_event(recorder: SpanRecorder) -> None:
    recorder.play(ENDINGS["prefill"]).close()
    assert tree(recorder) == {"chat demo": (0.0, 1.5), "queue": (0.0, 1.0), "prefill": (1.0, 1.5)}


def test_an_unsampled_request_holds_nothing() -> None:
    recorder = SpanRecorder(ALWAYS_OFF)
    sink = recorder.sink()
    sink.emit(SCRIPT.queued())
    assert sink.num_open() == 0
    sink.emit(RequestAdmitted(RequestId("chatcmpl-1"), at(1.0)))
    assert recorder.spans() == ()
    assert sink.failures() == {}


def test_durations_are_exact_when_the_wall_clock_jumps(recorder: SpanRecorder) -> None:
    class JumpingClock(FakeClock):
        jump_ns = 0

        def unix_ns(self) -> int:
            return super().unix_ns() + self.jump_ns

    clock = JumpingClock(START_NS, OFFSET_NS)
    sink = SpanEvents(recorder.provider.get_tracer("test"), clock)
    for event in SCRIPT.finished():
        sink.emit(event)
        clock.jump_ns -= 3_600_000_000_000
    assert times(recorder.named("decode")) == (2.0, 4.25)
