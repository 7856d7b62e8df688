"""Everything on, the whole way: a server on a socket, clients that send their trace, a strict receiver of OTLP for
traces, metrics and logs, and Prometheus itself as the scraper.

One run; each test looks at another part of what came of it.
"""

import json
import logging
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from adapters.otel.log_export import ROOT
from adapters.otel.setup import CAPTURE_CONTENT
from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from tests.support.http.servers.live_service import live_service
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.otel import clear_otel_variables
from tests.support.telemetry.otlp_receiver import OtlpReceiver, otlp_receiver

PROMETHEUS = shutil.which("prometheus")
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

CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs: [{{job_name: cairn, static_configs: [{{targets: ["{target}"]}}]}}]
"""


@dataclass
class Run:
    """The results of the run. `traceresponse`: of the request that named its trace. `scraped`: by Prometheus."""

    receiver: OtlpReceiver
    traceresponse: str = ""
    untraced: str = ""
    plain: str = ""
    openmetrics: str = ""
    content_types: list[str] = field(default_factory=list[str])
    scraped: dict[str, Any] = field(default_factory=dict[str, Any])


def ask(client: httpx.Client, text: str, **fields: Any) -> httpx.Response:
    message = {"role": "user", "content": text}
    body = {"model": MODEL, "messages": [message], "max_tokens": 6, "ignore_eos": True, "seed": 1, **fields}
    return client.post("/v1/chat/completions", json=body, headers=TRACEPARENT)


def converse(run: Run, base_url: str) -> None:
    with httpx.Client(base_url=base_url, timeout=PATIENCE_S) as client:
        prompt = f"{SECRET}. " * 40
        run.traceresponse = ask(client, prompt).headers["traceresponse"]
        ask(client, prompt, stream=True).read()
        assert ask(client, prompt, max_tokens=10**9).status_code == 400
        run.untraced = client.get("/health/live").headers.get("traceresponse", "")
        for accept in ("", OPENMETRICS):
            answer = client.get("/metrics", headers={"accept": accept})
            run.content_types.append(answer.headers["content-type"])
            run.plain, run.openmetrics = run.openmetrics, answer.text
        client.get("/v1/models", headers=TRACEPARENT)


def scrape(run: Run, base_url: str, folder: Path) -> None:
    """Let Prometheus scrape until it has a sample, and keep its answers."""
    config, log_file = folder / "prometheus.yaml", folder / "log"
    config.write_text(CONFIG.format(target=base_url.removeprefix("http://")))
    flags = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (
        open(log_file, "w") as log,
        subprocess.Popen([PROMETHEUS or "", *flags, "--web.listen-address=127.0.0.1:0"], stderr=log) as process,
    ):
        try:
            _wait_until(lambda: _port(log_file) is not None, log_file.read_text)
            port = _port(log_file) or 0
            for name, asked in {
                "up": ("query", {"query": 'up{job="cairn"} == 1'}),
                "targets": ("targets", {}),
                "tokens": ("query", {"query": "cairn_output_tokens_total"}),
            }.items():

                def is_told(name: str = name, asked: tuple[str, dict[str, str]] = asked) -> bool:
                    found = run.scraped[name] = _query(port, *asked)
                    # A busy machine may miss one scrape, and meet the next.
                    return bool(found) and (name != "targets" or found[0]["health"] == "up")

                _wait_until(is_told, log_file.read_text)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _query(port: int, path: str, asked: Mapping[str, str]) -> Any:
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/{path}", params=asked, timeout=PATIENCE_S)
    except httpx.TransportError:  # not there yet
        return None
    if answer.status_code == 503:  # starting
        return None
    data = answer.raise_for_status().json()["data"]
    return data.get("result") or data.get("activeTargets") if isinstance(data, dict) else data


def _port(log: Path) -> int | None:
    """The port that Prometheus listens on; None before. It chooses the port, so that no other process has it."""
    found = re.search(r'"Listening on".* address=\S+:(\d+)', log.read_text())
    return int(found[1]) if found else None


def _wait_until(condition: Callable[[], bool], log: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain; Prometheus said: {log()}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with otlp_receiver() as receiver, pytest.MonkeyPatch.context() as patch:
        clear_otel_variables(patch)
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        patch.setenv("NO_PROXY", "127.0.0.1")
        level, logger = logging.getLogger(ROOT).level, logging.getLogger(ROOT)
        logger.setLevel(logging.INFO)
        run = Run(receiver)
        with live_service(SETTINGS) as live:
            converse(run, live.base_url)
            if PROMETHEUS is not None:
                scrape(run, live.base_url, tmp_path_factory.mktemp("prometheus"))
        logger.setLevel(level)
        yield run


def test_a_strict_receiver_finds_nothing_wrong(run: Run) -> None:
    assert run.receiver.problems == []
    assert run.receiver.spans
    assert run.receiver.metrics
    assert run.receiver.logs


def test_one_trace_holds_the_spans_of_a_request(run: Run) -> None:
    """From the client's span over the HTTP request to the phases, and to what was left behind."""
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
    assert [span.name for span in below(chat)] == ["queue", "prefix lookup", "prefill", "decode", "parse"]
    assert [span.name for span in below(again)] == ["queue", "prefix lookup", "prefill", "decode", "parse"]
    told = {one.key: one.value.int_value for one in below(again)[1].attributes}
    assert told["cairn.prompt.live_tokens"] > 1000  # the state that the first one left: nothing is restored
    left = [span for span in spans.values() if span.name == "persist"]
    assert {span.links[0].span_id for span in left} <= {chat.span_id, again.span_id}
    assert chat.span_id in {span.links[0].span_id for span in left}
    assert all(span.trace_id.hex() != TRACE_ID for span in left)


def test_the_answer_says_which_trace_it_is_of(run: Run) -> None:
    version, trace_id, span_id, flags = run.traceresponse.split("-")
    assert (version, trace_id, flags) == ("00", TRACE_ID, "01")
    assert span_id in {span.span_id.hex() for span in run.receiver.spans if span.kind == 2}
    assert run.untraced == ""


def test_log_lines_name_their_traces(run: Run) -> None:
    ended = [record for name, record in run.receiver.logs if name == "cairn.requests" and "reason=" in _text(record)]
    assert len(ended) == 2
    for record in ended:
        assert record.trace_id.hex() == TRACE_ID
        assert f"trace={TRACE_ID}" in _text(record)
        spans = {span.span_id: span.name for span in run.receiver.spans}
        assert spans[record.span_id] == f"chat {MODEL}"
    assert any(name == "cairn.engine" and "loaded" in _text(record) for name, record in run.receiver.logs)


def _text(record: Any) -> str:
    return str(record.body.string_value)


def test_histograms_point_to_traces(run: Run) -> None:
    (point, *_) = run.receiver.metrics["gen_ai.server.time_to_first_token"].histogram.data_points
    assert {exemplar.trace_id.hex() for exemplar in point.exemplars} <= {TRACE_ID}
    assert TRACE_ID not in run.openmetrics + run.plain


def test_metrics_come_in_the_format_that_was_asked_for(run: Run) -> None:
    assert run.content_types[0] == "text/plain; version=0.0.4; charset=utf-8"
    assert run.content_types[1].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(run.openmetrics)}
    assert families["cairn_output_tokens"].type == "counter"
    assert families["cairn_inter_token_latency_seconds"].unit == "seconds"


def test_no_content_is_exported_by_default(run: Run) -> None:
    assert SECRET.encode() not in run.receiver.sent()
    assert b"heron" not in run.receiver.sent()


@pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not here")
def test_prometheus_scrapes_it(run: Run) -> None:
    (target,) = run.scraped["targets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    ((_, value),) = [series["value"] for series in run.scraped["tokens"]]
    assert value == "12"


def test_content_is_exported_if_the_variable_asks_for_it() -> None:
    with otlp_receiver() as receiver, pytest.MonkeyPatch.context() as patch:
        clear_otel_variables(patch)
        patch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.endpoint}/v1/traces")
        patch.setenv(CAPTURE_CONTENT, "span_only")
        patch.setenv("NO_PROXY", "127.0.0.1")
        with live_service(SETTINGS) as live, httpx.Client(base_url=live.base_url, timeout=PATIENCE_S) as client:
            answer = ask(client, SECRET).json()["choices"][0]["message"]["content"]
    assert receiver.problems == []
    (chat,) = [span for span in receiver.spans if span.name == f"chat {MODEL}"]
    told = {item.key: item.value.string_value for item in chat.attributes}
    parts = [{"type": "text", "content": SECRET}]
    assert json.loads(told["gen_ai.input.messages"]) == [{"role": "user", "parts": parts}]
    parts = [{"type": "text", "content": answer}]
    expected = [{"role": "assistant", "parts": parts, "finish_reason": "length"}]
    assert json.loads(told["gen_ai.output.messages"]) == expected
