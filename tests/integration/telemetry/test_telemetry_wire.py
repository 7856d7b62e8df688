"""Telemetry from end to end: a server on a socket, clients that send their trace, and a receiver of OTLP for traces
and metrics.

One run; each test looks at another part of what came of it.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from tests.support.http.servers.live_service import live_service
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.otel import clear_otel_variables
from tests.support.telemetry.otlp_receiver import OtlpReceiver, otlp_receiver

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
MODEL = "fake-hybrid"
SECRET = "the heron nests at dawn"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"

SETTINGS = Settings(
    server=ServerSettings(port=0),
    model=ModelSettings(default=MODEL),
    engine=EngineSettings(backend="fake"),
    store=StoreSettings(kind="memory"),
)


@dataclass
class Run:
    """The results of the run. `traceresponse`: of the request that named its trace. `lines`: of the request log."""

    receiver: OtlpReceiver
    traceresponse: str = ""
    untraced: str = ""
    content_types: list[str] = field(default_factory=list[str])
    lines: list[str] = field(default_factory=list[str])


def ask(client: httpx.Client, text: str, **fields: Any) -> httpx.Response:
    message = {"role": "user", "content": text}
    body = {"model": MODEL, "messages": [message], "max_tokens": 6, "ignore_eos": True, "seed": 1, **fields}
    return client.post("/v1/chat/completions", json=body, headers=TRACEPARENT)


def converse(run: Run, base_url: str) -> None:
    with httpx.Client(base_url=base_url, timeout=PATIENCE_S) as client:
        prompt = f"{SECRET}. " * 40
        run.traceresponse = ask(client, prompt).headers["traceresponse"]
        ask(client, prompt, stream=True).read()
        assert ask(client, prompt, max_tokens=10**9, min_tokens=10**9).status_code == 400
        run.untraced = client.get("/health/live").headers.get("traceresponse", "")
        for accept in ("", OPENMETRICS):
            answer = client.get("/metrics", headers={"accept": accept})
            run.content_types.append(answer.headers["content-type"])
        client.get("/v1/models", headers=TRACEPARENT)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with otlp_receiver() as receiver, pytest.MonkeyPatch.context() as patch:
        clear_otel_variables(patch)
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        patch.setenv("NO_PROXY", "127.0.0.1")
        run, logger = Run(receiver), logging.getLogger("cairn.requests")
        level, handler = logger.level, logging.Handler()
        logger.setLevel(logging.INFO)
        patch.setattr(handler, "emit", lambda record: run.lines.append(record.getMessage()))
        logger.addHandler(handler)
        with live_service(SETTINGS) as live:
            converse(run, live.base_url)
        logger.removeHandler(handler)
        logger.setLevel(level)
        yield run


def test_a_collector_takes_both_signals(run: Run) -> None:
    assert run.receiver.problems == []
    assert all(run.receiver.taken.values())


def test_one_trace_holds_the_spans_of_a_request(run: Run) -> None:
    """From the client's span over the HTTP request to the phases and the records."""
    spans = {span.span_id: span for span in run.receiver.spans}
    ours = [span for span in spans.values() if span.trace_id.hex() == TRACE_ID]
    http, streamed, refused = sorted(
        (span for span in ours if span.name == "POST /v1/chat/completions"), key=lambda span: span.start_time_unix_nano
    )
    assert {span.parent_span_id.hex() for span in (http, streamed, refused)} == {PARENT_ID}

    def below(parent: Any) -> list[Any]:
        found = [span for span in spans.values() if span.parent_span_id == parent.span_id]
        return sorted(found, key=lambda span: (span.start_time_unix_nano, span.name))

    (chat,), (again,), (no,) = below(http), below(streamed), below(refused)
    assert (chat.name, no.name) == (f"chat {MODEL}", "chat")
    phases = ["queue", "prefix lookup", "prefill", "decode", "parse"]
    for one in (chat, again):
        assert [span.name for span in below(one) if span.name != "persist"] == phases
    assert "persist" in [span.name for span in below(chat)]
    reported = {one.key: one.value.int_value for one in below(again)[1].attributes}
    assert reported["cairn.prompt.live_tokens"] > 1000  # the state that the first one left: nothing is restored


def test_the_answer_says_which_trace_it_is_of(run: Run) -> None:
    version, trace_id, span_id, flags = run.traceresponse.split("-")
    assert (version, trace_id, flags) == ("00", TRACE_ID, "01")
    assert span_id in {span.span_id.hex() for span in run.receiver.spans if span.kind == 2}
    assert run.untraced == ""


def test_metrics_are_served_in_the_format_that_the_scraper_accepts(run: Run) -> None:
    assert [one.partition(";")[0] for one in run.content_types] == ["text/plain", "application/openmetrics-text"]


def test_log_lines_name_their_traces(run: Run) -> None:
    ended = [line for line in run.lines if "reason=" in line]
    assert len(ended) == 2
    assert all(f"trace={TRACE_ID}" in line for line in ended)
