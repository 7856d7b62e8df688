"""`cairn logs explain` with a server that remembers, and without one."""

import json
import socket
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from adapters.fake.options import FakeOptions
from application.settings import CacheSettings
from interfaces.cli.main import app
from tests.support.http.servers.fake_service import FakeService, fake_service


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
def unused_address() -> Iterator[str]:
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


def test_an_unknown_id_is_said_to_be_so(service: FakeService) -> None:
    result = run("chatcmpl-9", "--url", service.base_url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "cairn: no request 'chatcmpl-9' is open or among the last that ended; the log of the server has a line about"
        " each that ended. Ids are those of answers (chatcmpl-...), not of x-request-id headers\n"
    )


def test_without_a_server_there_is_an_error(unused_address: str) -> None:
    result = run("../../x", "--url", unused_address)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"cairn: no server answers at {unused_address}")
