"""`cairn cache clear` and POST /v1/cache/clear take stored documents along, by salt and by model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adapters.fake.environment import FakeClock
from adapters.fake.options import FakeOptions, reply_with
from adapters.sqlite.document_store import SqliteDocumentStore
from adapters.system.clock import SystemClock
from application.settings import CacheSettings
from domain.request.document import Document, DocumentKey, Owner
from interfaces.cli.commands.cache import cache_app
from tests.support.http.servers.fake_service import fake_service
from tests.support.processes.cache_cli import isolate, make_store
from tests.support.processes.gate import Gate
from tests.support.stores.kill_documents import open_documents
from tests.support.telemetry.recording import RecordingEvents

SALT = "the server's own"


def kept(tenant: str, model: str) -> Document:
    began_ns = SystemClock().unix_ns()
    return Document(
        DocumentKey(Owner.of(SALT, tenant), "response", "a"), b"a secret of " + tenant.encode(), model, began_ns
    )


DOCUMENTS = [kept("alice", "demo"), kept("bob", "demo"), kept("carol", "other")]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(tmp_path, monkeypatch)
    monkeypatch.setenv("CAIRN_CACHE__SALT", SALT)
    folder = make_store(tmp_path / "store", [])
    store = open_documents(folder / "documents", clock=SystemClock())
    assert store.put(DOCUMENTS)
    store.close()
    return folder


def clear(path: Path, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(cache_app, ["clear", "--store", str(path), "--yes", "--json", *arguments])
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def left(path: Path) -> list[bool]:
    store = open_documents(path / "documents")
    found = [one is not None for one in store.get([one.key for one in DOCUMENTS])]
    store.close()
    return found


@pytest.mark.parametrize(
    ("arguments", "stays"),
    [
        ((), [False, False, False]),
        (("--salt", "alice"), [False, True, True]),
        (("--salt", ""), [True, True, True]),
        (("--model", "demo"), [False, False, True]),
        (("--model", "demo", "--salt", "carol"), [True, True, True]),
    ],
    ids=["all", "salt", "no-salt", "model", "both"],
)
def test_the_command_clears_the_chosen_documents(path: Path, arguments: tuple[str, ...], stays: list[bool]) -> None:
    answer = clear(path, *arguments)
    assert (answer["removed_documents"], answer["problem"]) == (stays.count(False), None)
    assert left(path) == stays
    content = b"".join(file.read_bytes() for file in (path / "documents").iterdir())
    assert [one.body in content for one in DOCUMENTS] == stays


def test_the_command_asks_where_there_are_only_documents(path: Path) -> None:
    refused = CliRunner().invoke(cache_app, ["clear", "--store", str(path)], input="n\n")
    assert refused.exit_code == 1
    assert "3 documents (stored responses" in refused.output
    assert left(path) == [True, True, True]


def test_a_live_server_clears_them_too() -> None:
    store = SqliteDocumentStore(None, 0, RecordingEvents(), SystemClock(), memory_bytes=1 << 20)
    with fake_service(cache_settings=CacheSettings(salt=SALT), documents=store) as service:
        assert store.put(DOCUMENTS)
        stats = service.client.get("/v1/cache/stats").json()["documents"]
        assert (stats["documents"], stats["quota_bytes"]) == (3, 1 << 20)
        for body, num_gone in (({"salt": "alice"}, 1), ({"salt": "alice"}, 0), ({"model": "demo"}, 1), ({}, 1)):
            answer = service.client.post("/v1/cache/clear", json=body).json()
            assert answer["documents"] == num_gone
            assert bool(answer["document_bytes"]) is bool(num_gone)


CALLS = FakeOptions(reply=reply_with('\n<call>ls {"a": 1}</call>'))
TOOLS = [{"type": "function", "name": "ls", "parameters": {"type": "object"}, "strict": False}]


def test_a_response_that_streams_while_everything_is_cleared_is_not_stored(tmp_path: Path) -> None:
    """Nor is the tool call in it, nor after a restart."""
    gate, clock = Gate("decode", 3), FakeClock()
    body = {"input": "List.", "tools": TOOLS, "stream": True}
    with fake_service(replace(CALLS, hook=gate), documents=open_documents(tmp_path, clock=clock)) as service:
        with service.client.stream("POST", "/v1/responses", json=body) as response:
            lines = response.iter_lines()
            created = next(line for line in lines if line.startswith("data: "))
            for one in (clock, service.clock):
                one.advance(1)
            assert service.client.post("/v1/cache/clear", json={}).status_code == 200
            gate.open()
            assert any("response.completed" in line for line in lines)
        id = json.loads(created.removeprefix("data: "))["response"]["id"]
        assert service.client.get(f"/v1/responses/{id}").status_code == 404
        assert service.client.get("/v1/cache/stats").json()["documents"]["documents"] == 0
    with fake_service(CALLS, documents=open_documents(tmp_path)) as service:
        assert service.client.get(f"/v1/responses/{id}").status_code == 404
        service.client.post("/v1/responses", json={**body, "stream": False})
        assert service.client.get("/v1/cache/stats").json()["documents"]["documents"] > 1
