"""The settings of a store that several servers share: addresses, secrets, and the key without which it is refused."""

from pathlib import Path

import pytest

from adapters.config.loader import InvalidSettings, load_settings, shown_settings
from adapters.resp.shared_store import RespSharedStore
from application.settings import Settings, StoreSettings
from domain.errors import InvalidRequest, ServerUnavailable
from interfaces.composition.store import MIN_FLEET_KEY_BYTES, build_shared_store

KEY = "0123456789abcdef" * 4


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1",
        "redis://localhost:6380/3",
        "redis://[::1]:6379/0",
        "rediss://user@127.0.0.1:6379/0",
        "redis://127.0.0.1/",
    ],
)
def test_addresses_on_loopback_need_no_key(url: str) -> None:
    assert isinstance(build_shared_store(StoreSettings(shared=url)), RespSharedStore)


@pytest.mark.parametrize("url", ["redis://cache:6379/0", "rediss://10.0.0.7", "redis://127.0.0.1.example.org/0"])
def test_others_are_refused_without_a_key(url: str, key_file: Path) -> None:
    with pytest.raises(InvalidRequest, match="fleet's key"):
        StoreSettings(shared=url)
    assert build_shared_store(StoreSettings(shared=url, shared_key_file=str(key_file))) is not None


def test_nodes_on_other_machines_need_a_key(key_file: Path) -> None:
    nodes = ("127.0.0.1", "10.0.0.2")
    with pytest.raises(InvalidRequest, match=r"^store\.shared_key_file must name .*, 10\.0\.0\.2 can be reached"):
        StoreSettings(shared="redis://127.0.0.1", shared_nodes=nodes)
    assert StoreSettings(shared="redis://127.0.0.1", shared_nodes=nodes[:1]).shared_nodes == nodes[:1]
    settings = StoreSettings(shared="redis://127.0.0.1", shared_nodes=nodes, shared_key_file=str(key_file))
    assert build_shared_store(settings) is not None


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:6379",
        "http://127.0.0.1",
        "redis://",
        "redis://:secret@127.0.0.1",
        "redis://user:secret@127.0.0.1:6379/0",
        "redis://127.0.0.1:70000",
        "redis://127.0.0.1/zero",
        "redis://127.0.0.1/0?ssl_cert_reqs=none",
        "redis://127.0.0.1 /0",
        "unix:///run/redis.sock",
    ],
)
def test_what_is_no_address_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^store\.shared must be like redis://HOST") as raised:
        StoreSettings(shared=url)
    assert "secret" not in raised.value.message


def test_it_stands_behind_a_local_store() -> None:
    with pytest.raises(InvalidRequest, match="needs a local store"):
        StoreSettings(kind="off", shared="redis://127.0.0.1")
    assert StoreSettings(kind="memory", shared="redis://127.0.0.1").shared


def test_without_the_setting_there_is_none() -> None:
    assert build_shared_store(StoreSettings()) is None


def test_a_key_file_that_cannot_be_used_is_named(key_file: Path) -> None:
    def problem() -> str:
        with pytest.raises(ServerUnavailable) as raised:
            build_shared_store(StoreSettings(shared="rediss://cache", shared_key_file=str(key_file)))
        assert KEY not in raised.value.message
        return raised.value.message

    key_file.chmod(0o640)
    assert "chmod 600" in problem()
    key_file.chmod(0o600)
    key_file.write_text("short")
    assert f"must hold {MIN_FLEET_KEY_BYTES}" in problem()
    key_file.unlink()
    assert "cannot be read: No such file" in problem()


def test_the_password_comes_from_the_environment_and_is_not_shown() -> None:
    variables = {
        "CAIRN_CONFIG": "/dev/null",
        "CAIRN_STORE__SHARED": "redis://127.0.0.1",
        "CAIRN_STORE__SHARED_PASSWORD": "a secret",
    }
    settings: Settings = load_settings(variables).settings
    assert settings.store.shared_password == "a secret"
    shown = {one.path: one.value for one in shown_settings(settings, {}, "")}
    assert shown["store.shared_password"] == "set"
    assert shown["store.shared"] == "redis://127.0.0.1"
    with pytest.raises(InvalidSettings, match=r"store\.shared_key_file"):
        load_settings({**variables, "CAIRN_STORE__SHARED": "redis://elsewhere"})
