"""Keys over HTTP: listed without secrets, made and shown once, valid and revoked at once; for admins without limits."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.system.key_file import KeyFile, with_key
from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from domain.client import Client, key_digest
from tests.support.http.servers.fake_service import fake_service
from tests.support.http.servers.live_service import FAKE, live_service
from tests.support.patience import PATIENCE_S

PATH = "/admin/api/settings/keys"
ROOT = {"authorization": "Bearer the root"}


@dataclass
class Server:
    client: httpx.Client
    file: Path

    def add(self, status: int = 200, headers: dict[str, str] = ROOT, **order: object) -> Any:
        answer = self.client.post(PATH, json=order, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json() if status == 200 else answer.json()["error"]

    def revoke(self, name: str, headers: dict[str, str] = ROOT) -> int:
        return self.client.delete(f"{PATH}/{name}", headers=headers).status_code

    def asks(self, key: str) -> int:
        return self.client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code

    def listed(self) -> dict[str, Any]:
        return {one["name"]: one for one in self.client.get(PATH, headers=ROOT).json()["data"]}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    file, text = tmp_path / "keys.toml", "# of the team\n"
    for client in (
        Client("root", key_digest(b"the root"), admin=True),
        Client("half", key_digest(b"the half"), models=frozenset({FAKE}), admin=True),
    ):
        text = with_key(text, client)
    file.write_text(text)
    file.chmod(0o600)
    settings = Settings(
        server=ServerSettings(port=0, key_file=str(file), api_key="of the settings"),
        engine=EngineSettings(backend="fake"),
        model=ModelSettings(default=FAKE),
        store=StoreSettings(kind="off"),
    )
    with (
        live_service(settings) as live,
        httpx.Client(base_url=live.base_url, timeout=PATIENCE_S, verify=False) as client,
    ):
        yield Server(client, file)


def test_a_key_is_shown_once_and_valid_at_once(server: Server) -> None:
    made = server.add(name="ci", requests_per_minute=60, models=[FAKE], priority="batch")
    assert server.asks(made["key"]) == 200
    told = server.client.get(PATH, headers=ROOT).text
    assert made["key"] not in told + server.file.read_text()
    assert key_digest(made["key"].encode()) not in told
    assert server.file.read_text().startswith("# of the team\n")
    (kept,) = [one for one in KeyFile(str(server.file)).read() if one.name == "ci"]
    assert (kept.requests_per_minute, kept.models, kept.admin, bool(kept.salt)) == (60, {FAKE}, False, True)
    shown = server.listed()
    assert shown["ci"] == {
        "name": "ci",
        "admin": False,
        "requests_per_minute": 60,
        "max_concurrent": None,
        "models": [FAKE],
        "priority": "batch",
        "shared": False,
        "own": False,
        "mcp": None,
    }
    assert shown["root"]["own"]


def test_a_revoked_key_is_refused_at_once(server: Server) -> None:
    key = server.add(name="ci")["key"]
    assert server.revoke("ci") == 200
    assert server.asks(key) == 401
    assert "ci" not in server.listed()
    assert server.revoke("ci") == 400


def test_nobody_revokes_the_key_in_use_or_that_of_the_settings(server: Server) -> None:
    assert (server.revoke("root"), server.revoke("default")) == (400, 400)
    assert server.asks("the root") == 200


def test_an_admin_who_is_limited_to_models_changes_no_keys(server: Server) -> None:
    half = {"authorization": "Bearer the half"}
    assert "limited to some models" in server.add(403, half, name="whole", admin=True)["message"]
    assert server.revoke("root", half) == 403


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"name": "root"}, "already has a key named 'root'"),
        ({"name": "a b"}, "a key's name must have"),
        ({"name": "default"}, "the name is taken"),
        ({"name": "ci", "max_concurrent": 0}, "max_concurrent must be in"),
        ({"name": "ci", "priority": "first"}, "priority"),
    ],
)
def test_what_is_no_key_is_refused_and_the_file_stays(server: Server, order: dict[str, Any], words: str) -> None:
    before = server.file.read_text()
    assert words in server.add(400, **order)["message"]
    assert server.file.read_text() == before


def test_a_server_without_a_file_of_keys_names_the_setting() -> None:
    with fake_service() as service:
        told = service.client.post(PATH, json={"name": "ci"})
        assert (told.status_code, "server.key_file" in told.text) == (400, True)
