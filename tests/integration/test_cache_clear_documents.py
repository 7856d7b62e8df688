"""`cairn cache clear` and POST /v1/cache/clear take stored documents along, by salt and by model."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adapters.memory.document_store import MemoryDocumentStore
from adapters.system.clock import SystemClock
from application.settings import CacheSettings
from domain.document import Document, DocumentKey, Owner
from interfaces.cli.cache import cache_app
from tests.support.cache_cli import isolate, make_store
from tests.support.fake_service import fake_service
from tests.support.kill_documents import open_documents

SALT = "the server's own"


def kept(tenant: str, model: str) -> Document:
    created_s = SystemClock().unix_ns() // 10**9
    return Document(
        DocumentKey(Owner.of(SALT, tenant), "response", "a"), b"a secret of " + tenant.encode(), model, created_s
    )


DOCUMENTS = [kept("alice", "demo"), kept("bob", "demo"), kept("carol", "other")]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(tmp_path, monkeypatch)
    monkeypatch.setenv("CAIRN_CACHE__SALT", SALT)
    folder = make_store(tmp_path / "store", [])
    store = open_documents(folder / "documents")
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
def test_the_command_clears_what_is_meant(path: Path, arguments: tuple[str, ...], stays: list[bool]) -> None:
    answer = clear(path, *arguments)
    assert (answer["removed_documents"], answer["problem"]) == (stays.count(False), None)
    assert left(path) == stays
    content = b"".join(file.read_bytes() for file in (path / "documents").iterdir())
    assert [one.body in content for one in DOCUMENTS] == stays


def test_the_command_asks_where_there_are_only_documents(path: Path) -> None:
    refused = CliRunner().invoke(cache_app, ["clear", "--store", str(path)], input="n\n")
    assert refused.exit_code == 1
    assert "3 stored responses" in refused.output
    assert left(path) == [True, True, True]


def test_a_live_server_clears_them_too() -> None:
    store = MemoryDocumentStore(1 << 20, SystemClock())
    with fake_service(cache_settings=CacheSettings(salt=SALT), documents=store) as service:
        assert store.put(DOCUMENTS)
        stats = service.client.get("/v1/cache/stats").json()["documents"]
        assert (stats["documents"], stats["quota_bytes"]) == (3, 1 << 20)
        for body, num_gone in (({"salt": "alice"}, 1), ({"salt": "alice"}, 0), ({"model": "demo"}, 1), ({}, 1)):
            answer = service.client.post("/v1/cache/clear", json=body).json()
            assert answer["documents"] == num_gone
            assert bool(answer["document_bytes"]) is bool(num_gone)
