"""`cairn logs explain` with a server that remembers, with a log, and with neither."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from adapters.fake.options import FakeOptions
from application.settings import CacheSettings
from interfaces.cli.main import app
from tests.support.http.servers.fake_service import FakeService, fake_service

LINE = (
    "2026-11-22 10:00:04.250 INFO cairn.requests: request chatcmpl-9 model=demo prompt=1025 reused=0 computed=1025"
    " output=9 queue=1.000s prefill=1.000s decode=2.250s ttft=2.250s total=4.250s rate=4.0tok/s reason=length\n"
)


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(eos_every=0), reuses=True, cache_settings=CacheSettings(show_text="on")) as running:
        yield running


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["logs", "explain", *arguments])


def lines(result: Result) -> dict[str, str]:
    assert result.exit_code == 0, result.output
    return {line[:12].strip(): line[12:] for line in result.stdout.splitlines()}


def ask(service: FakeService, text: str) -> str:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4}
    answer = service.client.post("/v1/chat/completions", json=body).raise_for_status().json()
    return str(answer["id"])


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nothing listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{closed.getsockname()[1]}"


def test_the_story_comes_from_the_server(service: FakeService) -> None:
    ask(service, "Is it Monday? " * 60)
    id = ask(service, "Is it Monday? " * 30 + "Is it Sunday?")
    service.wait_until_idle()
    found = lines(run(id, "--url", service.base_url))
    assert found["request"].startswith(f"{id}, model fake-attention")
    assert found["no more"].startswith("never-seen: From token ")
    assert found["prompt"].startswith("Sun")
    assert found["stored"].startswith("Mon")
    assert found["ended"].endswith("length, max_tokens or the context was used up")
    data = json.loads(run(id, "--url", service.base_url, "--json").stdout)
    assert (data["id"], data["end"]["reason"], data["reused"]["hot"] > 0) == (id, "length", True)


def test_the_story_comes_from_the_log_if_the_server_has_none(service: FakeService, tmp_path: Path, nobody: str) -> None:
    (tmp_path / "log").write_text(f"something else\n{LINE}")
    for url in (service.base_url, nobody):
        found = lines(run("chatcmpl-9", "--url", url, "--log", str(tmp_path / "log")))
        assert found["computed"] == "1,025 tokens, in 1.00s"
    piped = CliRunner().invoke(app, ["logs", "explain", "chatcmpl-9", "--url", nobody, "--log", "-"], input=LINE)
    assert "1,025 tokens, in 1.00s" in piped.stdout


@pytest.mark.parametrize(
    "forged",
    [
        LINE.replace("2026-11-22", "2026-99-99"),
        LINE.replace("total=4.250s", "total=1e999s"),
        LINE.replace("total=4.250s", "total=nans"),
        "{" * 100_000 + "chatcmpl-9\n",
        '{"a":' * 100_000 + "chatcmpl-9\n",
    ],
    ids=["date", "infinite", "nan", "braces", "nested"],
)
def test_forged_lines_are_ignored(tmp_path: Path, nobody: str, forged: str) -> None:
    (tmp_path / "log").write_text(LINE + forged)
    found = lines(run("chatcmpl-9", "--url", nobody, "--log", str(tmp_path / "log")))
    assert found["computed"] == "1,025 tokens, in 1.00s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no request 'chatcmpl-9' is open or among the last that ended; older ones are in its log: give it with"
             " --log FILE. Ids are those of answers (chatcmpl-...), not of x-request-id headers"),
        (("--log", "/dev/null"), "/dev/null has no line about 'chatcmpl-9'; no request 'chatcmpl-9' is open"),
        (("--log", "/nowhere"), "/nowhere cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_an_unknown_id_is_said_to_be_so(service: FakeService, arguments: tuple[str, ...], message: str) -> None:
    result = run("chatcmpl-9", "--url", service.base_url, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"cairn: {message}")


def test_without_a_server_and_a_log_there_is_an_error(nobody: str) -> None:
    result = run("../../x", "--url", nobody)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"cairn: no server answers at {nobody}")
