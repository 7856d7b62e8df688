"""The key file: its content, its mode and its changes; and the keys of a running server, which follow it."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from adapters.fake.environment import FakeClock
from adapters.system.key_file import MAX_BYTES, KeyFile, ServerKeys, parse_keys, with_key, without_key
from adapters.system.private_file import private_file
from application.settings import ServerSettings
from domain.client import Client, key_digest
from domain.errors import InvalidKeys
from domain.priority import Priority
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.recording import RecordingEvents

HASH = key_digest(b"secret")
FULL = Client("ci", key_digest(b"2"), 'a "salt" \\ \x7f é', 60, 4, frozenset({"m", 'odd "name"'}), Priority.BATCH, True)


def written(path: Path, text: str, mode: int = 0o600) -> KeyFile:
    path.write_text(text)
    path.chmod(mode)
    return KeyFile(str(path))


def test_written_keys_are_read_back() -> None:
    keys = [Client("plain", key_digest(b"1")), FULL]
    text = ""
    for key in keys:
        text = with_key(text, key)
    assert parse_keys(text) == keys
    assert b"1" not in {line.encode() for line in text.splitlines()}
    assert parse_keys(without_key(text, "plain")) == [keys[1]]
    assert parse_keys(without_key(without_key(text, "ci"), "plain")) == []


def test_comments_and_other_keys_are_kept() -> None:
    text = f'# ours\n\n[keys.a]  # first\nsha256 = "{HASH}"\n# about b\n[keys.b]\nsha256 = "{"0" * 64}"'
    added = with_key(text, Client("c", key_digest(b"1")))
    assert added.startswith(text)
    assert without_key(text, "a") == f'# ours\n\n# about b\n[keys.b]\nsha256 = "{"0" * 64}"'
    assert without_key(added, "c") == text + "\n\n"


@pytest.mark.parametrize(
    "text",
    [f'keys = {{a = {{sha256 = "{HASH}"}}}}', f'[keys]\na.sha256 = "{HASH}"', f'["keys".a]\nsha256 = "{HASH}"'],
    ids=["inline", "dotted", "quoted"],
)
def test_keys_in_another_form_are_not_edited(text: str) -> None:
    assert len(parse_keys(text)) == 1
    with pytest.raises(InvalidKeys, match="by hand"):
        without_key(text, "a")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[keys.a]\n", "keys.a.sha256 must be 64"),
        ('[keys.a]\nsha256 = "cairn_SECRET"\n', "keys.a.sha256 must be 64"),
        ("[keys.a]\nsha256 = cairn_SECRET\n", "not valid TOML (at line 2"),
        ("cairn_SECRET", "not valid TOML"),
        (f'[keys.a]\nsha256 = "{HASH}"\nrequests_per_minut = 3\n', "unknown field `requests_per_minut`"),
        (
            f'[keys.a]\nsha256 = "{HASH}"\nrequests_per_minute = true\n',
            "Expected `int | null`, got `bool` - at `$.requests_per_minute`",
        ),
        (f'[keys.a]\nsha256 = "{HASH}"\nrequests_per_minute = 0\n', "must be in 1.."),
        (f'[keys.a]\nsha256 = "{HASH}"\npriority = "first"\n', "keys.a: priority must be interactive or batch"),
        (f'[keys.a]\nsha256 = "{HASH}"\nadmin = "false"\n', "Expected `bool`, got `str` - at `$.admin`"),
        (f'[keys.a]\nsha256 = "{HASH}"\nmodels = "m"\n', "Expected `array | null`, got `str` - at `$.models`"),
        (f'[keys.a]\nsha256 = "{HASH}"\nmodels = [1]\n', "Expected `str`, got `int` - at `$.models[0]`"),
        (f'[keys."a b"]\nsha256 = "{HASH}"\n', "letters, digits"),
        (f'[keys.""]\nsha256 = "{HASH}"\n', "the name is taken"),
        (f'[keys.default]\nsha256 = "{HASH}"\n', "taken by server.api_key"),
        (f'[key.a]\nsha256 = "{HASH}"\n', "nothing else"),
        ("keys = 3", "nothing else"),
        ("[keys]\na = 3", "keys.a: Expected `object`, got `int`"),
        (f'[keys.a]\nsha256 = "{HASH}"\n[keys.a]\n', "not valid TOML"),
    ],
    ids=[f"text-{number}" for number in range(18)],
)
def test_errors_name_the_field_and_repeat_no_value(text: str, told: str) -> None:
    with pytest.raises(InvalidKeys) as refused:
        parse_keys(text)
    assert told in refused.value.message
    assert "SECRET" not in refused.value.message


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o611], ids=oct)
def test_a_file_that_others_can_access_is_refused(tmp_path: Path, mode: int) -> None:
    file = written(tmp_path / "keys.toml", f'[keys.a]\nsha256 = "{HASH}"\n', mode)
    with pytest.raises(InvalidKeys, match="chmod 600"):
        file.read()
    with pytest.raises(InvalidKeys, match="chmod 600"):
        file.change(lambda text: text)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidKeys, match="cairn keys add"):
        KeyFile(str(tmp_path / "none.toml")).read()
    (tmp_path / "folder").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "pipe", 0o600)
    large = written(tmp_path / "large.toml", "#" * (MAX_BYTES + 1))
    odd = tmp_path / "odd.toml"
    odd.write_bytes(b"\xff")
    odd.chmod(0o600)
    for file in (KeyFile(str(tmp_path / "folder")), KeyFile(str(tmp_path / "pipe")), large, KeyFile(str(odd))):
        with pytest.raises(InvalidKeys):
            file.read()


def test_a_change_is_private_and_atomic(tmp_path: Path) -> None:
    file = KeyFile(str(tmp_path / "keys.toml"))
    assert file.stamp() is None
    file.change(lambda text: with_key(text, Client("a", key_digest(b"1"))))
    assert file.path.stat().st_mode & 0o777 == 0o600
    stamp, before = file.stamp(), file.path.read_text()
    with pytest.raises(InvalidKeys, match="already has a key named 'a'"):
        file.change(lambda text: with_key(text, Client("a", key_digest(b"2"))))
    with pytest.raises(InvalidKeys, match="not valid TOML"):
        file.change(lambda text: text + "[")
    assert (file.stamp(), file.path.read_text()) == (stamp, before)
    file.path.chmod(0o640)
    assert file.stamp() != stamp


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    file = KeyFile(str(tmp_path / "keys.toml"))

    def add(number: int) -> None:
        key = Client(f"k{number}", key_digest(bytes([number])))
        file.change(lambda text: with_key(text, key))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.name for key in file.read()} == {f"k{number}" for number in range(8)}


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    made = KeyFile(str(tmp_path / "keys.toml"))
    add(made, "alice")
    return made


def add(file: KeyFile, name: str) -> None:
    file.change(lambda text: with_key(text, Client(name, key_digest(name.encode()))))


def server_keys(file: KeyFile, events: RecordingEvents, look_every_s: float = 0.01) -> ServerKeys:
    settings = ServerSettings(api_key="own", key_file=str(file.path))
    return ServerKeys(settings, events, FakeClock(), look_every_s)


def client_names(keys: ServerKeys, *offered: str) -> list[str]:
    return [meter.client.name for meter in keys.ring.find([key.encode() for key in offered])]


def watched(keys: ServerKeys, test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S), keys.watching():
            await test()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what changes is a file
        await asyncio.sleep(0.005)


def test_added_and_removed_keys_are_seen(file: KeyFile) -> None:
    events = RecordingEvents()
    keys = server_keys(file, events)
    assert client_names(keys, "own") == ["default"]

    async def test() -> None:
        assert client_names(keys, "bob") == []
        add(file, "bob")
        await until(lambda: client_names(keys, "bob") == ["bob"])
        file.change(lambda text: without_key(text, "alice"))
        await until(lambda: client_names(keys, "alice") == [])
        assert client_names(keys, "own") == ["default"]

    watched(keys, test)
    assert events.events == []


def broken(file: KeyFile) -> None:
    file.path.write_text(file.path.read_text() + '[keys.b]\nsha256 = "SECRET"\n')


def not_toml(file: KeyFile) -> None:
    file.path.write_text("SECRET")


def removed(file: KeyFile) -> None:
    file.path.unlink()


def opened_to_others(file: KeyFile) -> None:
    file.path.chmod(0o644)


def with_the_server_s_own(file: KeyFile) -> None:
    file.change(lambda text: with_key(text, Client("twin", key_digest(b"own"))))


@pytest.mark.parametrize("spoil", [broken, not_toml, removed, opened_to_others, with_the_server_s_own])
def test_a_file_that_cannot_be_used_keeps_the_old_keys_and_is_reported_once(
    file: KeyFile, spoil: Callable[[KeyFile], None], caplog: pytest.LogCaptureFixture
) -> None:
    events = RecordingEvents()
    keys = server_keys(file, events)
    good = file.path.read_text()

    async def test() -> None:
        spoil(file)
        await until(lambda: bool(events.of("FaultObserved")))
        for _ in range(10):  # read again and again, and reported once
            await asyncio.sleep(0.01)
        assert client_names(keys, "alice") == ["alice"]
        assert client_names(keys, "own") == ["default"]
        assert client_names(keys, "stranger", "") == []
        keys.look_now()
        await until(lambda: len(events.of("FaultObserved")) == 2)
        with private_file(file.path) as stream:  # in one step: a read of a part of it would be reported as well
            stream.write(good.encode())
        add(file, "bob")
        await until(lambda: client_names(keys, "bob") == ["bob"])

    with caplog.at_level(logging.INFO, "cairn.keys"):
        watched(keys, test)
    faults = events.of("FaultObserved")
    assert {fault.where for fault in faults} == {"keys.read"}  # type: ignore[attr-defined]
    assert len(faults) == 2
    assert "the previous keys stay valid" in caplog.text
    assert "SECRET" not in caplog.text + repr(faults)


def test_a_signal_reads_it_without_waiting(file: KeyFile) -> None:
    keys = server_keys(file, RecordingEvents(), look_every_s=10 * PATIENCE_S)

    async def test() -> None:
        add(file, "bob")
        keys.look_now()
        await until(lambda: client_names(keys, "bob") == ["bob"])

    watched(keys, test)


@pytest.mark.parametrize("spoil", [broken, not_toml, removed, opened_to_others, with_the_server_s_own])
def test_a_server_does_not_start_with_it(file: KeyFile, spoil: Callable[[KeyFile], None]) -> None:
    spoil(file)
    with pytest.raises(InvalidKeys):
        server_keys(file, RecordingEvents())
