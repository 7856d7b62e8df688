"""The request log: one line a request, faults that do not flood, and a blocked handler that blocks no caller."""

import dataclasses
import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.system.event_log import EventLog, LogWriter
from application.events import (
    EngineRecovered,
    EngineRestarted,
    EngineStuck,
    Event,
    FaultObserved,
    ModelLoaded,
    Parsing,
    PrefixMatched,
    RecordsDropped,
    RequestRefused,
    StoreFault,
    StoreOpened,
)
from application.services.request_timelines import RequestTimelines
from domain.health.engine_health import ENDED
from domain.ids import ModelId
from domain.prefix.explanation import TIER_NAMES
from domain.request.request import Usage
from interfaces.cli.terminal.logs import JsonFormatter
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.event_script import Script, at


class Capture(logging.Handler):
    """Keeps levels and lines; waits at the gate first."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []
        self.objects: list[dict[str, object]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.entered.set()
        self.gate.wait()
        self.objects.append(json.loads(JsonFormatter().format(record)))
        self.lines.append((record.levelname, record.getMessage()))


@pytest.fixture
def capture() -> Iterator[Capture]:
    handler, logger = Capture(), logging.getLogger("cairn")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    handler.gate.set()
    logger.removeHandler(handler)
    logger.setLevel(level)


def logged(capture: Capture, events: list[Event]) -> list[tuple[str, str]]:
    timelines = RequestTimelines()
    log = EventLog(timelines)
    for event in events:
        timelines.emit(event)
        log.emit(event)
    log.close()
    log.close()
    return capture.lines


def test_a_stuck_engine_is_logged_with_its_stack(capture: Capture) -> None:
    stuck = EngineStuck(
        stuck_in="prefill",
        since_ns=at(0),
        num_waiting=1,
        num_running=2,
        num_calls=0,
        request_ids=(Script().id,),
        stack="thread cairn-compute:\n  model.py:7 in prefill",
        at_ns=at(300),
    )
    again = dataclasses.replace(stuck, is_first=False, stack="", request_ids=())
    assert logged(capture, [stuck, again, EngineRecovered("prefill", at(360) - at(0), at(360))]) == [
        ("ERROR", "stuck in prefill for 300s: waiting=1 running=2 calls=0 requests=chatcmpl-1"),
        ("ERROR", "thread cairn-compute:"),
        ("ERROR", "  model.py:7 in prefill"),
        ("ERROR", "still stuck in prefill for 300s: waiting=1 running=2 calls=0 requests=none"),
        ("WARNING", "prefill is stuck no longer, after 360s"),
    ]


def test_a_server_without_an_engine_says_so(capture: Capture) -> None:
    ended = EngineStuck(
        stuck_in=ENDED, since_ns=at(0), num_waiting=2, num_running=0, num_calls=0, request_ids=(), at_ns=at(1)
    )
    assert logged(capture, [ended, EngineRecovered(ENDED, at(9) - at(0), at(9))]) == [
        ("ERROR", "without an engine for 1s: waiting=2 running=0 calls=0 requests=none"),
        ("WARNING", "there is an engine again, after 9s"),
    ]


def test_an_engine_restart_is_logged_with_its_cause(capture: Capture) -> None:
    restarted = EngineRestarted(why="was killed", num_resumed=3, down_ns=2_500_000_000, num_tries=2, at_ns=at(3))
    line = "another engine took over after 2.5s, with 3 choices (try 2): was killed"
    assert logged(capture, [restarted]) == [("WARNING", line)]


def test_a_finished_request_is_one_line_with_its_costs(capture: Capture) -> None:
    assert logged(capture, Script().finished()) == [
        (
            "INFO",
            "request chatcmpl-1 model=demo prompt=1025 reused=0 computed=1025 output=9 queue=1.000s prefill=1.000s"
            " decode=2.250s ttft=2.250s total=4.250s rate=4.0tok/s reason=stop",
        )
    ]


def documented_keys() -> list[str]:
    """The keys of the table in the section of logs."""
    text = (Path(__file__).parents[3] / "docs/telemetry.md").read_text()
    section = text[text.index("## Logs") : text.index("## Metrics")]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return re.findall(r"`(\w+)`", " ".join(rows))


def test_each_field_of_a_line_is_a_documented_key_of_its_json(capture: Capture) -> None:
    script, timelines = Script(), RequestTimelines()
    usage = Usage(1025, 9, dict.fromkeys(TIER_NAMES, 10), proposed={"ngram": 4}, accepted={"ngram": 3})
    parsing = Parsing(family="", num_calls=0, problems=(), busy_ns=0, started_ns=0, ended_ns=0, repeated_tokens=7)
    ended = dataclasses.replace(script.failed(4.25), usage=usage, parsing=parsing)
    queued = dataclasses.replace(script.queued(), client="alice")
    seen = [script.images_matched(), script.image_seen()]
    for event in (queued, *script.prefilled()[1:], *seen, script.first_token(), ended):
        timelines.emit(event)
    timeline = timelines.of(script.id)
    assert timeline is not None
    timeline.matched = PrefixMatched(
        id=script.id, num_prompt=1025, reused={}, num_known=9, reason="never-seen", started_ns=0, at_ns=0, diverged_at=9
    )
    timeline.num_preemptions, timeline.waited_for, timeline.followed = 1, ("memory", "prefix"), "chatcmpl-0"
    log = EventLog(timelines, lambda _id: {"trace_id": "ab"})
    log.emit(ended)
    log.close()
    ((_, line),), (found,) = capture.lines, capture.objects
    named = re.findall(r" (\w+)=", line)
    assert set(named) <= set(found)
    assert sorted(documented_keys()) == sorted(
        {*found} - {"time", "level", "logger", "message"} | {"tool_call_problems"}
    )
    assert (found["request"], found["error"], found["error_message"]) == (
        "chatcmpl-1",
        "compute_failed",
        "the matrix is singular",
    )
    assert (found["prompt"], found["live"], found["shared"], found["total"]) == (1025, 10, 10, 4.25)


def test_a_refusal_has_its_keys_in_json(capture: Capture) -> None:
    logged(capture, [RequestRefused(ModelId("demo"), "queue_full", at(0))])
    assert capture.objects[0].items() >= {"model": "demo", "error": "queue_full"}.items()


def test_a_request_cancelled_in_prefill_says_what_it_cost_so_far(capture: Capture) -> None:
    script = Script()
    ((level, line),) = logged(
        capture, [script.queued(), script.admitted(), script.first_chunk(), script.ended("cancelled", 3.0, 0)]
    )
    assert level == "INFO"
    assert line == (
        "request chatcmpl-1 model=demo prompt=1025 reused=0 computed=512 output=0 queue=1.000s prefill=2.000s"
        " total=3.000s reason=cancelled"
    )


def test_a_failure_is_a_warning_on_one_line(capture: Capture) -> None:
    script = Script()
    ((level, line),) = logged(capture, [script.queued(), script.failed(0.5)])
    assert level == "WARNING"
    assert line.endswith("total=0.500s reason=error error=compute_failed: the matrix is singular")


def test_models_refusals_and_drops(capture: Capture) -> None:
    assert logged(
        capture,
        [
            ModelLoaded(
                id=ModelId("demo"),
                duration_ns=1_500_000_000,
                weight_bytes=3 * 2**20,
                decode_mode="single",
                note="batched rows differ",
                at_ns=at(0),
                active_bytes=5 * 2**20,
            ),
            RequestRefused(ModelId("x\ny"), "model_not_found", at(0)),
            RequestRefused(ModelId("demo"), "queue_full", at(0)),
            RecordsDropped(2, "queue_full", at(0)),
            StoreFault("corrupt", "bad checksum", at(0)),
            StoreOpened(35_000_000_000, at(35)),
        ],
    ) == [
        ("INFO", "model demo loaded in 1.5s weights=3MiB memory=5MiB decode=single (batched rows differ)"),
        ("INFO", "request refused model='x\\ny' error=model_not_found"),
        ("WARNING", "request refused model='demo' error=queue_full"),
        ("WARNING", "records not stored: queue_full (occurrence 1): 2 records"),
        ("ERROR", "fault in store: corrupt (occurrence 1): bad checksum"),
        ("WARNING", "the store was opened after 35s; new prefixes are stored from now on"),
    ]


def test_a_fault_that_keeps_coming_is_logged_ever_more_rarely(capture: Capture) -> None:
    lines = logged(capture, [FaultObserved("engine.step", "no\nmemory", at(n)) for n in range(100)])
    assert [line for _, line in lines] == [f"fault in engine.step (occurrence {2**n}): no memory" for n in range(7)]


def test_a_blocked_handler_blocks_no_caller_and_lost_lines_are_counted(capture: Capture) -> None:
    logger = logging.getLogger("cairn.requests")
    writer = LogWriter(max_lines=4)
    capture.gate.clear()
    writer.write(logger, logging.INFO, "first")
    assert capture.entered.wait(PATIENCE_S)
    for n in range(10):
        writer.write(logger, logging.INFO, f"line {n}")  # returns though the pipe is not read
    capture.gate.set()
    writer.close(20)
    lines = [line for _, line in capture.lines]
    assert lines[0] == "first"
    assert lines[2:] == [f"line {n}" for n in range(4)]
    assert lines[1] == "6 lines were not logged: the log is slower than the server"


def test_lines_below_the_level_are_not_even_queued(capture: Capture) -> None:
    logging.getLogger("cairn").setLevel(logging.ERROR)
    assert logged(capture, Script().finished()) == []
