"""The EventSink contract over every sink: any event from any thread, never blocking on a consumer, never raising."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import get_args

import pytest

from adapters.fake.clock import FakeClock
from adapters.otel.spans import SpanEvents
from adapters.system.event_log import EventLog
from application.events import (
    Event,
    FaultObserved,
    HttpRefused,
    ModelLoaded,
    ModelUnloaded,
    PrefixAwaited,
    PrefixMatched,
    RecordsDropped,
    RecordsEvicted,
    RecordsPersisted,
    RequestPreempted,
    RequestRefused,
    RequestWaits,
    StateCaptured,
    StateRestored,
    StepCompleted,
    StoreFault,
    ToolCallProblems,
)
from application.health_events import EngineRecovered, EngineRestarted, EngineStuck
from application.memory_events import MemoryMeasured, PressureRelieved
from application.ports.event_sink import EventSink
from application.services.event_fan_out import EventFanOut, NullEvents
from domain.ids import ModelId
from domain.memory.ledger import MemoryLedger, MemoryLimits
from tests.support.event_script import OF_THE_TIERS, Script, at
from tests.support.otel import MetricRecorder, SpanRecorder, clear_otel_variables
from tests.support.recording import RecordingEvents

SCRIPT_ID = Script().id

OTHERS: list[Event] = [
    ModelLoaded(
        id=ModelId("demo"), duration_ns=1, weight_bytes=1, decode_mode="single", note="probe failed", at_ns=at(0)
    ),
    ModelUnloaded(ModelId("demo"), at(0)),
    RequestRefused(ModelId("demo"), "queue_full", at(0)),
    HttpRefused("host", "evil.example", at(0)),
    StepCompleted(
        num_waiting=1, num_running=2, num_prefill_tokens=512, num_decode_tokens=3, started_ns=at(0), at_ns=at(0.25)
    ),
    FaultObserved("engine.sequence", "no", at(0)),
    PrefixMatched(
        id=SCRIPT_ID,
        num_prompt=1025,
        reused={"hot": 512, "store": 256},
        num_known=1024,
        reason="no-snapshot",
        started_ns=at(0),
        at_ns=at(0.02),
    ),
    PrefixAwaited(SCRIPT_ID, SCRIPT_ID, 512, at(0)),
    StateRestored(
        id=SCRIPT_ID, position=768, size_bytes=3_000_000, started_ns=at(0), fetched_ns=at(0.01), at_ns=at(0.02)
    ),
    StateCaptured(id=SCRIPT_ID, num_blocks=2, num_snapshots=1, size_bytes=4_000_000, started_ns=at(0), at_ns=at(0.01)),
    RecordsPersisted(num_records=4, raw_bytes=1_000_000, queued_bytes=250_000, started_ns=at(0), at_ns=at(0.01)),
    RecordsDropped(2, 500_000, "queue_full", at(0)),
    RecordsEvicted(3, at(0)),
    MemoryMeasured(ledger=MemoryLedger(weight_bytes=5, reading_bytes=9, limits=MemoryLimits.of(100)), level=2, at_ns=1),
    PressureRelieved("shrink_hot", 7, 1),
    EngineStuck(stuck_in="prefill", since_ns=1, num_waiting=0, num_running=1, num_calls=0, at_ns=2),
    EngineRecovered("prefill", 5, 6),
    EngineRestarted(why="killed", num_resumed=2, down_ns=5, num_tries=1, at_ns=9),
    RequestWaits(SCRIPT_ID, "memory", at(0)),
    RequestPreempted(SCRIPT_ID, 300, at(0)),
    StoreFault("corrupt", "bad checksum", at(0)),
    *OF_THE_TIERS,
    ToolCallProblems(SCRIPT_ID, ("malformed_arguments",), at(0)),
]


def make_spans(stack: ExitStack) -> EventSink:
    provider = SpanRecorder().provider
    stack.callback(provider.shutdown)
    return SpanEvents(provider.get_tracer("test"), FakeClock(), max_open=4)


def make_metrics(stack: ExitStack) -> EventSink:
    recorder = MetricRecorder()
    stack.callback(recorder.provider.shutdown)
    return recorder.sink()


def make_log(stack: ExitStack) -> EventSink:
    log = EventLog()
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
    told = {type(event) for event in (*OTHERS, *Script().answered())}
    assert told == set(get_args(Event))


def test_every_event_is_taken(sink: EventSink) -> None:
    for event in (*Script().prefilled(), *OTHERS, *Script().answered()):
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
                for event in (*Script(f"{n}-{round % 3}").finished(), *OTHERS):
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
    for event in OTHERS:
        fan_out.emit(event)
    assert before.events == after.events == OTHERS
    assert fan_out.failures() == {"BrokenSink": len(OTHERS)}
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None
