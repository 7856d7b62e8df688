"""Metrics driven through events by hand; `GET /metrics`' text; and that what documents them names nothing else."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics.export import HistogramDataPoint, NumberDataPoint

from adapters.otel.catalogue import CATALOGUE, MetricKind
from application.events import (
    EngineRecovered,
    Event,
    PrefixMatched,
    RequestRefused,
)
from domain.ids import ModelId
from domain.request.request import Usage
from tests.support.telemetry.all_metrics import EVERYTHING, exposed
from tests.support.telemetry.event_script import Script, at
from tests.support.telemetry.otel import MetricRecorder

ROOT = Path(__file__).parents[3]
MODEL = ("gen_ai.response.model", "demo")
REQUEST = (
    ("gen_ai.operation.name", "chat"),
    ("gen_ai.provider.name", "cairn"),
    ("gen_ai.request.model", "alias"),
    MODEL,
)


class Board:
    """A sink and short ways to read what it counted."""

    def __init__(self, events: list[Event]) -> None:
        self._recorder = MetricRecorder()
        self._sink = self._recorder.sink(lambda: {"RequestQueued": 2})
        self.emit(events)

    def emit(self, events: list[Event]) -> None:
        for event in events:
            self._sink.emit(event)
        assert self._sink.failures() == {}

    def names(self) -> set[str]:
        return set(self._recorder.points())

    def value(self, name: str, *attributes: tuple[str, object]) -> float | None:
        point = self._recorder.points().get(name, {}).get(frozenset(attributes))
        assert point is None or isinstance(point, NumberDataPoint)
        return None if point is None else point.value

    def histogram(self, name: str, *attributes: tuple[str, object]) -> HistogramDataPoint:
        point = self._recorder.points()[name][frozenset(attributes)]
        assert isinstance(point, HistogramDataPoint)
        return point

    def attributes(self, name: str) -> set[str]:
        return {key for point in self._recorder.points()[name] for key, _ in point}


def test_every_metric_of_the_catalogue_is_fed_with_the_attributes_it_names() -> None:
    board = Board(EVERYTHING)
    assert board.names() == {spec.name for spec in CATALOGUE}
    for spec in CATALOGUE:
        assert board.attributes(spec.name) == set(spec.attributes), spec.name


def test_latencies_of_a_finished_request() -> None:
    board = Board(Script().finished())
    expected = {
        "gen_ai.server.request.duration": 4.25,
        "gen_ai.server.time_to_first_token": 2.25,
        "gen_ai.server.time_per_output_token": 2.0 / 8,
    }
    for name, seconds in expected.items():
        point = board.histogram(name, *REQUEST)
        assert (point.count, point.sum) == (1, pytest.approx(seconds))
    for name, seconds in {"cairn.queue.time": 1.0, "cairn.prefill.time": 1.0, "cairn.decode.time": 2.25}.items():
        assert board.histogram(name, MODEL).sum == pytest.approx(seconds)


def test_failures_carry_their_type_and_no_time_per_token() -> None:
    script = Script()
    board = Board([*script.prefilled(), script.first_token(), script.failed(3.0, num_output=5)])
    error = ("error.type", "compute_failed")
    assert board.histogram("gen_ai.server.request.duration", *REQUEST, error).sum == pytest.approx(3.0)
    assert board.value("cairn.requests.ended", MODEL, ("cairn.reason", "error"), error) == 1
    assert "gen_ai.server.time_per_output_token" not in board.names()
    assert board.value("cairn.output.tokens", MODEL) == 5


def test_prompt_tokens_count_as_computed_when_they_are() -> None:
    script = Script()
    board = Board(script.prefilled()[:3])
    assert board.value("cairn.prompt.tokens", MODEL, ("cairn.origin", "computed")) == 512
    board.emit([*script.prefilled()[3:], script.first_token(), script.ended()])
    assert board.value("cairn.prompt.tokens", MODEL, ("cairn.origin", "computed")) == 1025
    assert board.value("cairn.output.tokens", MODEL) == 9


def test_gauges_follow_requests_through_their_stages() -> None:
    first, second = Script("a"), Script("b")
    board = Board([first.queued(), second.queued()])

    def gauges() -> tuple[float | None, float | None]:
        return board.value("cairn.requests.waiting", MODEL), board.value("cairn.requests.running", MODEL)

    assert gauges() == (2, 0)
    board.emit([first.admitted()])
    assert gauges() == (1, 1)
    board.emit(first.prefilled()[2:])
    assert gauges() == (1, 1)
    board.emit([second.ended("cancelled"), first.ended()])
    assert gauges() == (0, 0)


def test_names_that_clients_invent_do_not_become_attributes() -> None:
    board = Board([RequestRefused(ModelId(f"invented-{n}"), "model_not_found", at(0)) for n in range(50)])
    attributes = ("gen_ai.request.model", "_OTHER"), ("error.type", "model_not_found")
    assert board.value("cairn.requests.refused", *attributes) == 50


def test_events_that_any_sink_could_not_take_are_counted() -> None:
    script = Script()
    board = Board([script.queued(), replace(script.first_chunk(), end=None)])  # type: ignore[arg-type]
    assert board.value("cairn.telemetry.failures", ("cairn.event", "RequestQueued")) == 2
    assert board.value("cairn.telemetry.failures", ("cairn.event", "PrefillChunkComputed")) == 1


@pytest.fixture(scope="module")
def exposition() -> str:
    """The body of `GET /metrics` after EVERYTHING."""
    return exposed("")


def test_the_exposition_holds_the_values(exposition: str) -> None:
    labels = (
        'gen_ai_operation_name="chat",gen_ai_provider_name="cairn",'
        'gen_ai_request_model="alias",gen_ai_response_model="demo"'
    )
    lines = exposition.splitlines()
    assert f"gen_ai_server_time_to_first_token_seconds_sum{{{labels}}} 4.5" in lines
    assert f'gen_ai_server_time_to_first_token_seconds_bucket{{{labels},le="2.5"}} 2.0' in lines
    assert 'cairn_prompt_tokens_total{cairn_origin="computed",gen_ai_response_model="demo"} 3075.0' in lines
    assert 'cairn_requests_running{gen_ai_response_model="demo"} 0.0' in lines
    assert 'cairn_step_duration_seconds_bucket{le="0.1"} 0.0' in lines
    assert 'cairn_step_duration_seconds_bucket{le="0.25"} 1.0' in lines
    assert 'service_name="cairn"' in exposition


def test_stuck_threads_are_counted_until_they_recover() -> None:
    board = Board(EVERYTHING)
    assert board.value("cairn.engine.stuck") == 1
    board.emit([EngineRecovered("prefill", 9, 10)])
    assert board.value("cairn.engine.stuck") == 0


def test_the_choices_of_a_request_are_one_lookup_and_reuse_once() -> None:
    board = Board([])
    for choice in range(3):
        script = Script(f"r.{choice}", choice=choice)
        found = PrefixMatched(
            id=script.id,
            num_prompt=1025,
            reused={"hot": 512},
            num_known=512,
            reason="never-seen",
            started_ns=at(0),
            at_ns=at(0),
        )
        board.emit([script.queued(), found, replace(found), script.ended()])
    why = ("cairn.cache.result", "partial"), ("cairn.cache.stop_reason", "never-seen")
    assert board.value("cairn.prefix.lookups", *why) == 1
    assert board.value("cairn.prompt.tokens", MODEL, ("cairn.origin", "hot")) == 512


def test_draft_tokens_count_by_model_and_drafter() -> None:
    script = Script()
    usage = Usage(9, 100, proposed={"ngram": 60, "mtp": 20}, accepted={"ngram": 48, "mtp": 0})
    board = Board([script.queued(), replace(script.ended(), usage=usage)])
    for drafter, counts in {"ngram": (60, 48), "mtp": (20, None)}.items():
        found = [
            board.value(f"cairn.speculation.{name}_tokens", MODEL, ("cairn.drafter", drafter))
            for name in ("proposed", "accepted")
        ]
        assert tuple(found) == counts


def test_image_tokens_count_once_a_request_by_what_became_of_them() -> None:
    board = Board([])
    for choice in range(2):
        script = Script(f"r.{choice}", choice=choice)
        board.emit([script.queued(), script.images_matched()])
    assert board.value("cairn.image.tokens", MODEL, ("cairn.origin", "reused")) == 67
    assert board.value("cairn.image.tokens", MODEL, ("cairn.origin", "computed")) == 67


def test_the_documentation_lists_the_catalogue() -> None:
    text = (ROOT / "docs/telemetry.md").read_text()
    rows = {row[0]: row[1] for row in re.findall(r"^\| `([a-z_.]+)` \| ([a-z ]+) \|", text, re.MULTILINE)}
    kinds = {
        MetricKind.COUNTER: "counter",
        MetricKind.UP_DOWN: "gauge",
        MetricKind.GAUGE: "gauge",
        MetricKind.HISTOGRAM: "histogram",
    }
    assert rows == {spec.name: kinds[spec.kind] for spec in CATALOGUE}
