"""Events that between them feed every metric of the catalogue, and what `GET /metrics` answers after them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adapters.fake.environment import FakeClock
from adapters.otel.catalogue import Metric
from adapters.otel.setup import build_telemetry
from adapters.otel.telemetry import NO_ROUTERS, RouterFigures
from application.events import (
    EngineRecovered,
    EngineRestarted,
    EngineStuck,
    Event,
    FaultObserved,
    HttpRefused,
    MemoryMeasured,
    ModelLoaded,
    PrefixAwaited,
    PrefixMatched,
    PressureRelieved,
    RecordsDropped,
    RecordsEvicted,
    RecordsPersisted,
    RequestPreempted,
    RequestRefused,
    StateCaptured,
    StateRestored,
    StepCompleted,
    StoreFault,
    ToolCalled,
)
from application.services.event_sinks import EventFanOut
from application.settings import TelemetrySettings
from domain.ids import ModelId
from domain.memory.ledger import MemoryLedger, MemoryLimits
from domain.request.request import Usage
from tests.support.telemetry.event_script import OF_THE_TIERS, Script, at, text_script
from tests.support.telemetry.otel import clear_otel_variables, live_figures

SCRIPT_ID = Script().id


def matched(id: str) -> PrefixMatched:
    return PrefixMatched(
        id=Script(id).id,
        num_prompt=1025,
        reused={"hot": 512, "store": 256},
        num_known=1024,
        reason="no-snapshot",
        started_ns=at(0),
        at_ns=at(0.02),
    )


EVERYTHING: list[Event] = [
    ModelLoaded(
        id=ModelId("demo"),
        duration_ns=2_000_000_000,
        weight_bytes=44_000_000,
        decode_mode="batched",
        note="",
        at_ns=at(-5),
        token_bytes=1,
    ),
    replace(Script("unpriced").queued(), model=ModelId("other")),
    matched("unpriced"),
    Script("unpriced").ended(),
    *Script("finished").finished(),
    *Script("answered").answered(),
    Script("drafted").queued(),
    replace(Script("drafted").ended(), usage=Usage(1025, 9, proposed={"ngram": 4}, accepted={"ngram": 3})),
    *text_script().finished(),
    Script("seeing").queued(),
    Script("seeing").images_matched(),
    Script("seeing").image_seen(),
    Script("failed").queued(),
    Script("failed").waits(),
    matched("failed"),
    Script("failed").admitted(),
    RequestPreempted(Script("failed").id, at(1.2)),
    Script("failed").failed(1.5),
    RequestRefused(ModelId("demo"), "queue_full", at(0)),
    HttpRefused("host_not_allowed", "evil.example", at(0)),
    StepCompleted(num_prefill_tokens=512, num_decode_tokens=3, started_ns=at(0), at_ns=at(0.25)),
    FaultObserved("engine.sequence", "no", at(0)),
    PrefixAwaited(SCRIPT_ID, SCRIPT_ID, 512, at(0)),
    StateRestored(
        id=SCRIPT_ID,
        position=768,
        size_bytes=3_000_000,
        started_ns=at(0),
        fetched_ns=at(0.01),
        at_ns=at(0.02),
        tier_bytes={"hot": 3_000_000},
    ),
    StateCaptured(id=SCRIPT_ID, num_blocks=2, num_snapshots=1, size_bytes=4_000_000, started_ns=at(0), at_ns=at(0.01)),
    RecordsPersisted(num_records=4, raw_bytes=1_000_000, started_ns=at(0), at_ns=at(0.01)),
    RecordsDropped(2, "queue_full", at(0)),
    RecordsEvicted(3, at(0)),
    MemoryMeasured(ledger=MemoryLedger(weight_bytes=5, reading_bytes=9, limits=MemoryLimits.of(100)), level=2, at_ns=1),
    PressureRelieved("shrink_hot", 1),
    EngineStuck(stuck_in="prefill", since_ns=1, num_waiting=0, num_running=1, num_calls=0, at_ns=2),
    EngineStuck(stuck_in="prefill", since_ns=1, num_waiting=0, num_running=1, num_calls=0, at_ns=3, is_first=False),
    EngineStuck(stuck_in="event loop", since_ns=1, num_waiting=0, num_running=0, num_calls=0, at_ns=2),
    EngineRecovered("event loop", 5, 6),
    EngineRestarted(why="killed", num_resumed=2, down_ns=3_000_000_000, num_tries=2, at_ns=9),
    StoreFault("corrupt", "bad checksum", at(0)),
    ToolCalled(server="time", tool="convert_time", error_code="tool_error", started_ns=5, at_ns=9),
    *OF_THE_TIERS,
]


def exposed(accept: str, events: Sequence[Event] = EVERYTHING, routers: RouterFigures = NO_ROUTERS) -> str:
    """The body of `GET /metrics` for an Accept header, after these events."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        clear_otel_variables(monkeypatch)
        figures = live_figures()
        telemetry = build_telemetry(TelemetrySettings(), FakeClock(), figures, routers)
        sink = EventFanOut(figures.timelines, telemetry.sink, figures)
        for event in events:
            sink.emit(event)
        assert telemetry.metrics_text is not None
        text = telemetry.metrics_text(accept).body.decode()
        telemetry.shutdown()
    return text


def prometheus_name(spec: Metric) -> str:
    """The name of a metric in Prometheus, without the endings of its samples."""
    unit = {"s": "_seconds", "By": "_bytes"}.get(spec.unit, "")
    return spec.name.replace(".", "_") + unit
