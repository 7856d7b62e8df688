"""Settings of a running server, changed over HTTP: shown first, written to the file, in effect at once, and undone."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.config.loader import Flag, load_settings
from domain.client import Client
from tests.support.http.servers.fake_service import fake_service, headers, keyed_service
from tests.support.http.servers.live_service import FAKE, live_service
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.recording import RecordingEvents

PATH = "/admin/api/settings"
TEXT = """# of the office
[server]
log_level = "warning"  # quiet
api_key = "the key of the office"  # of nobody else
aliases = [
  "claude-*",  # Claude Code
]

[model]
default = "fake-attention"
"""
BEARER = {"authorization": "Bearer the key of the office"}
TEMPERATURE = f'models."{FAKE}".sampling.temperature'


@dataclass
class Office:
    """A server with a configuration file."""

    client: httpx.Client
    file: Path
    events: RecordingEvents

    def dry(self, status: int = 200, **changes: object) -> Any:
        return self._told(self.client.patch(PATH, json={"changes": _paths(changes), "dry_run": True}), status)

    def apply(self, changes: Mapping[str, object], digest: str | None = None, status: int = 200) -> Any:
        """With the digest of a dry run, unless there is one."""
        if digest is None:
            digest = self._told(self.client.patch(PATH, json={"changes": changes, "dry_run": True}), 200)["digest"]
        return self._told(self.client.patch(PATH, json={"changes": changes, "digest": digest}), status)

    def undo(self, status: int = 200) -> Any:
        dry = self._told(self.client.post(f"{PATH}/undo", json={"dry_run": True}), status)
        if status != 200:
            return dry
        return self._told(self.client.post(f"{PATH}/undo", json={"digest": dry["digest"]}), status)

    def setting(self, path: str) -> Any:
        return next(one for one in self._told(self.client.get(PATH), 200)["data"] if one["path"] == path)

    def complete(self, model: str = FAKE) -> httpx.Response:
        return self.client.post("/v1/completions", json={"model": model, "prompt": "x", "max_tokens": 1})

    def model(self) -> Any:
        return next(one for one in self.client.get("/models").json()["data"] if one["standing"]["id"] == FAKE)

    def _told(self, answer: httpx.Response, status: int) -> Any:
        assert answer.status_code == status, answer.text
        return answer.json() if status == 200 else answer.json()["error"]


def _paths(changes: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("__", "."): value for name, value in changes.items()}


@contextmanager
def office(file: Path, environ: Mapping[str, str] | None = None, **flags: Flag) -> Iterator[Office]:
    given = {"server.port": Flag("--port", 0), "engine.backend": Flag("--backend", "fake"), **_paths(flags)}
    given |= {"store.kind": Flag("--no-store", "off"), "model.default": Flag("MODEL", FAKE)}
    loaded = load_settings({"CAIRN_CONFIG": str(file), **(environ or {})}, given)  # type: ignore[arg-type]
    events = RecordingEvents()
    with (
        live_service(loaded.settings, loaded=loaded, extra_sinks=(events,)) as live,
        httpx.Client(base_url=live.base_url, timeout=PATIENCE_S, headers=BEARER, verify=False) as client,
    ):
        yield Office(client, file, events)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "config.toml"
    found.write_text(TEXT)
    found.chmod(0o640)
    return found


@pytest.fixture
def served(file: Path) -> Iterator[Office]:
    level = logging.getLogger("cairn").level, logging.getLogger().level
    with office(file) as running:
        yield running
    logging.getLogger("cairn").setLevel(level[0])
    logging.getLogger().setLevel(level[1])


def test_a_change_is_shown_first_and_writes_nothing(served: Office) -> None:
    shown = served.dry(server__aliases=["claude-*", "gpt-*"], server__log_level="debug")
    assert served.file.read_text() == TEXT
    assert shown["difference"].splitlines() == [
        "  [server]",
        '- log_level = "warning"  # quiet',
        '+ log_level = "debug"  # quiet',
        '+   "gpt-*",',
    ]
    assert (shown["applied"], shown["changed"]) == (False, ["server.log_level", "server.aliases"])
    assert "office" not in shown["difference"]
    assert served.complete("gpt-7").status_code == 404


def test_a_change_is_written_with_comments_and_mode_and_in_effect_at_once(served: Office) -> None:
    answer = served.apply({"server.aliases": ["claude-*", "gpt-*"], "server.log_level": "debug"})
    expected = TEXT.replace('"warning"', '"debug"').replace("  # Claude Code\n", '  # Claude Code\n  "gpt-*",\n')
    assert served.file.read_text() == expected
    assert served.file.stat().st_mode & 0o777 == 0o640
    assert answer["applied"]
    assert served.complete("gpt-7").status_code == 200
    assert logging.getLogger("cairn").level == logging.DEBUG
    assert (served.setting("server.aliases")["value"], served.setting("server.log_level")["value"]) == (
        ["claude-*", "gpt-*"],
        "debug",
    )


def test_a_models_sampling_time_and_pin_are_those_of_its_next_request(served: Office) -> None:
    assert served.complete().status_code == 200
    served.apply({TEMPERATURE: 0.25, f'models."{FAKE}".idle_ttl': "30m", f'models."{FAKE}".pin': True})
    assert served.complete().status_code == 200
    used: Any = [one.sampling.temperature for one in served.events.of("RequestQueued")]
    assert used == [1.0, 0.25]
    model = served.model()
    assert (model["sampling"], model["standing"]["idle_ttl_s"], model["standing"]["pinned"]) == (
        {"temperature": 0.25},
        1800,
        True,
    )
    assert served.setting(TEMPERATURE)["value"] == 0.25


def test_an_undo_restores_file_and_effect_once(served: Office) -> None:
    served.apply({"server.aliases": None, f'models."{FAKE}".pin': True})
    assert served.complete("claude-x").status_code == 200  # the default is the same
    served.apply({"server.aliases": []})
    assert served.complete("claude-x").status_code == 404
    assert served.client.get(PATH).json()["can_undo"]
    assert served.undo()["difference"] == "  [server]\n- aliases = []"
    assert served.complete("claude-x").status_code == 200
    assert not served.client.get(PATH).json()["can_undo"]
    assert "there is no change to undo" in served.undo(400)["message"]


def test_a_file_that_another_program_changed_is_left_alone(served: Office) -> None:
    shown = served.dry(server__aliases=["gpt-*"])
    served.file.write_text(f"{TEXT}# somebody was here\n")
    told = served.apply({"server.aliases": ["gpt-*"]}, shown["digest"], status=409)
    assert (told["code"], "meanwhile" in told["message"]) == ("settings_changed", True)
    served.apply({"server.aliases": ["gpt-*"]})
    served.file.write_text(TEXT)
    assert "changed after" in served.undo(409)["message"]
    assert served.file.read_text() == TEXT


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """One for all changes that are refused."""
    file = tmp_path_factory.mktemp("office") / "config.toml"
    file.write_text(TEXT)
    with office(file) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("server.port", 80, "--port"),
        ("server.api_key", "mine", "restart"),
        ("server.key_file", "/etc/passwd", "restart"),
        ("server.allowed_hosts", ["*"], "restart"),
        ("server.cors_origins", ["*"], "restart"),
        ("server.admin", False, "restart"),
        ("store.dir", "/", "restart"),
        ("model.dirs", ["/"], "restart"),
        (f'models."{FAKE}".adapter', "/", "not a setting that can change"),
        (f'models."{FAKE}".base', "/", "not a setting that can change"),
        ("server.nothing", 1, "not a setting"),
        ("server.log_level", "loud", "server.log_level must be debug"),
        ("server.image_hosts", ["HTTP://x"], "server.image_hosts must be host names"),
        ("model.idle_ttl", "400d", "model.idle_ttl must be in 1s..365d"),
        (TEMPERATURE, 11, "temperature must be between 0 and 10"),
        (TEMPERATURE, "hot", "temperature must be a number"),
        (f'models."{FAKE}".sampling.heat', 1, "is not a setting"),
    ],
)
def test_what_cannot_be_changed_here_is_refused_by_its_name(
    unchanged: Office, path: str, value: object, words: str
) -> None:
    told = unchanged.client.patch(PATH, json={"changes": {path: value}, "dry_run": True})
    assert (told.status_code, words in told.json()["error"]["message"]) == (400, True), told.text
    assert unchanged.file.read_text() == TEXT


def test_a_variable_or_a_flag_that_decides_is_named(file: Path) -> None:
    level = Flag("--log-level", "error")
    with office(file, {"CAIRN_SERVER__ALIASES": "gpt-*"}, server__log_level=level) as served:
        assert "CAIRN_SERVER__ALIASES decides it" in served.dry(400, server__aliases=[])["message"]
        assert "--log-level decides it" in served.dry(400, server__log_level="debug")["message"]
        assert "CAIRN_SERVER__ALIASES" in served.setting("server.aliases")["fixed"]
        assert served.setting("server.image_hosts")["fixed"] == ""
        assert "restart" in served.setting("server.allowed_hosts")["fixed"]


def test_a_file_that_cannot_be_written_changes_nothing(served: Office) -> None:
    shown = served.dry(server__aliases=["gpt-*"])
    served.file.with_name("config.toml.undo").mkdir()
    told = served.apply({"server.aliases": ["gpt-*"]}, shown["digest"], status=503)
    assert told["code"] == "settings_unwritable"
    assert served.file.read_text() == TEXT
    assert served.complete("gpt-7").status_code == 404


def test_a_model_that_is_not_here_or_cannot_be_pinned_is_no_setting(served: Office) -> None:
    order = {"changes": {'models."nobody/none".pin': True}, "dry_run": True}
    assert served.client.patch(PATH, json=order).status_code == 404
    assert served.file.read_text() == TEXT


def test_the_first_change_makes_the_file_and_its_undo_removes_it(tmp_path: Path) -> None:
    file = tmp_path / "cairn" / "config.toml"
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "CAIRN_CONFIG": ""}
    with office(file, environ) as served:
        shown = served.dry(server__image_hosts=["a.example"])
        assert (shown["file"], shown["creates"]) == (str(file), True)
        served.apply({"server.image_hosts": ["a.example"]}, shown["digest"])
        assert file.read_text() == '[server]\nimage_hosts = ["a.example"]\n'
        assert file.stat().st_mode & 0o777 == 0o600
        assert served.setting("server.image_hosts")["source"] == str(file)
        served.undo()
        assert not file.exists()
        assert served.setting("server.image_hosts")["value"] == []


def test_a_digest_is_needed_to_write(served: Office) -> None:
    told = served.client.patch(PATH, json={"changes": {"server.aliases": []}})
    assert (told.status_code, told.json()["error"]["param"]) == (400, "digest")


def test_only_admins_and_pages_of_this_server_change_settings(served: Office) -> None:
    order = {"changes": {"server.aliases": []}, "dry_run": True}
    foreign = {**BEARER, "origin": "https://evil.example"}
    assert served.client.patch(PATH, json=order, headers=foreign).status_code == 403
    plain = {**BEARER, "content-type": "text/plain"}
    assert served.client.patch(PATH, content=b"{}", headers=plain).status_code == 415
    with keyed_service(Client("alice"), Client("root", admin=True, models=frozenset())) as service:
        for verb, path in (("GET", PATH), ("PATCH", PATH), ("POST", f"{PATH}/undo"), ("GET", f"{PATH}/keys")):
            body = None if verb == "GET" else {"changes": {}} if verb == "PATCH" else {}
            assert service.client.request(verb, path, json=body, headers=headers("alice")).status_code == 403
        pinned = {"changes": {f'models."{FAKE}".pin': True}, "dry_run": True}
        assert service.client.patch(PATH, json=pinned, headers=headers("root")).status_code == 403


def test_a_setting_of_the_file_forbids_all_changes_over_http(file: Path) -> None:
    file.write_text(
        f"{TEXT}\n[server.none]\n".replace("[server.none]\n", "").replace("[model]", "admin = false\n[model]")
    )
    with office(file) as served:
        assert not served.client.get(PATH).json()["may_change"]
        assert served.client.patch(PATH, json={"changes": {"server.aliases": []}}).status_code == 403
        assert served.client.post(f"{PATH}/undo", json={}).status_code == 403
        assert served.client.post(f"{PATH}/keys", json={"name": "ci"}).status_code == 403


def test_a_server_without_a_file_says_so() -> None:
    with fake_service() as service:
        told = service.client.patch(PATH, json={"changes": {"server.aliases": []}, "dry_run": True})
        assert (told.status_code, "not started from a configuration file" in told.text) == (400, True)
        assert service.client.get(PATH).json()["file"] == ""
