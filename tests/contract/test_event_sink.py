"""The EventSink contract over every sink: any event from any thread, never blocking on a consumer, never raising."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import get_args

import pytest

from adapters.fake.environment import FakeClock
from adapters.otel.request_spans import SpanEvents
from adapters.system.event_log import EventLog
from application.events import (
    Event,
    ModelUnloaded,
    StoreOpened,
)
from application.ports.event_sink import EventSink
from application.services.event_sinks import EventFanOut, NullEvents
from application.services.request_timelines import RequestTimelines
from domain.ids import ModelId
from tests.support.telemetry.all_metrics import EVERYTHING
from tests.support.telemetry.event_script import Script, at
from tests.support.telemetry.otel import MetricRecorder, SpanRecorder, clear_otel_variables
from tests.support.telemetry.recording import RecordingEvents

EVENTS: list[Event] = [*EVERYTHING, ModelUnloaded(ModelId("demo"), at(0)), StoreOpened(5, at(0))]


def make_spans(stack: ExitStack) -> EventSink:
    provider = SpanRecorder().provider
    stack.callback(provider.shutdown)
    return SpanEvents(provider.get_tracer("test"), FakeClock(), max_open=4)


def make_metrics(stack: ExitStack) -> EventSink:
    recorder = MetricRecorder()
    stack.callback(recorder.provider.shutdown)
    return recorder.sink()


def make_log(stack: ExitStack) -> EventSink:
    log = EventLog(RequestTimelines())
    stack.callback(log.close)
    return log


SINKS: dict[str, Callable[[ExitStack], EventSink]] = {
    "null": lambda _: NullEvents(),
    "recording": lambda _: RecordingEvents(),
    "fan-out": lambda stack: EventFanOut(RecordingEvents(), make_log(stack), make_metrics(stack), NullEvents()),
    "log": make_log,
    "spans": make_spans,
    "metrics": make_metrics,
}


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventSink]:
    clear_otel_variables(monkeypatch)
    with ExitStack() as stack:
        yield SINKS[request.param](stack)


def failures(sink: EventSink) -> dict[str, int]:
    counted = getattr(sink, "failures", dict)
    return dict(counted())


def test_the_events_here_are_all_there_are() -> None:
    told = {type(event) for event in EVENTS}
    assert told == set(get_args(Event))


def test_every_event_is_taken(sink: EventSink) -> None:
    for event in EVENTS:
        sink.emit(event)
    assert failures(sink) == {}


def test_any_order_is_taken(sink: EventSink) -> None:
    events = Script().answered()
    for first in events:
        for second in events:
            sink.emit(second)
            sink.emit(first)
    assert failures(sink) == {}


def test_any_thread_may_emit(sink: EventSink) -> None:
    errors: list[BaseException] = []
    barrier = threading.Barrier(8)

    def work(n: int) -> None:
        try:
            barrier.wait()
            for round in range(20):
                for event in (*Script(f"{n}-{round % 3}").finished(), *EVENTS):
                    sink.emit(event)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert failures(sink) == {}


class BrokenSink:
    def emit(self, event: Event) -> None:
        raise RuntimeError("defect")


def test_the_fan_out_shields_everyone_from_a_sink_that_breaks_the_contract(caplog: pytest.LogCaptureFixture) -> None:
    before, after = RecordingEvents(), RecordingEvents()
    fan_out = EventFanOut(before, BrokenSink(), after)
    for event in EVENTS:
        fan_out.emit(event)
    assert before.events == after.events == EVENTS
    assert fan_out.failures() == {"BrokenSink": len(EVENTS)}
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None
