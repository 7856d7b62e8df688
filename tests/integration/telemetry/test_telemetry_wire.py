"""Everything on, the whole way: a server on a socket, clients that send their trace, a strict receiver of OTLP for
traces and metrics, and Prometheus itself as the scraper.

One run; each test looks at another part of what came of it.
"""

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
    """The results of the run. `traceresponse`: of the request that named its trace. `scraped`: by Prometheus. `lines`:
    of the request log."""

    receiver: OtlpReceiver
    traceresponse: str = ""
    untraced: str = ""
    plain: str = ""
    openmetrics: str = ""
    content_types: list[str] = field(default_factory=list[str])
    scraped: dict[str, Any] = field(default_factory=dict[str, Any])
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
        run, logger = Run(receiver), logging.getLogger("cairn.requests")
        level, handler = logger.level, logging.Handler()
        logger.setLevel(logging.INFO)
        patch.setattr(handler, "emit", lambda record: run.lines.append(record.getMessage()))
        logger.addHandler(handler)
        with live_service(SETTINGS) as live:
            converse(run, live.base_url)
            if PROMETHEUS is not None:
                scrape(run, live.base_url, tmp_path_factory.mktemp("prometheus"))
        logger.removeHandler(handler)
        logger.setLevel(level)
        yield run


def test_a_strict_receiver_finds_nothing_wrong(run: Run) -> None:
    assert run.receiver.problems == []
    assert run.receiver.spans
    assert run.receiver.metrics


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
    ended = [line for line in run.lines if "reason=" in line]
    assert len(ended) == 2
    assert all(f"trace={TRACE_ID}" in line for line in ended)
