"""The keys of a running server follow their file; what cannot be used changes nothing and is told."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from adapters.fake.environment import FakeClock
from adapters.system.key_file import KeyFile, with_key, without_key
from adapters.system.private_file import private_file
from application.settings import ServerSettings
from domain.client import Client, Key, key_digest
from domain.errors import InvalidKeys
from interfaces.composition.keys import ServerKeys
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.recording import RecordingEvents


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    made = KeyFile(str(tmp_path / "keys.toml"))
    add(made, "alice")
    return made


def add(file: KeyFile, name: str) -> None:
    file.change(lambda text: with_key(text, Key(key_digest(name.encode()), Client(name))))


def server_keys(file: KeyFile, events: RecordingEvents, look_every_s: float = 0.01) -> ServerKeys:
    settings = ServerSettings(api_key="own", key_file=str(file.path))
    return ServerKeys(settings, events, FakeClock(), look_every_s)


def names(keys: ServerKeys, *offered: str) -> list[str]:
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
    assert names(keys, "own") == ["default"]

    async def test() -> None:
        assert names(keys, "bob") == []
        add(file, "bob")
        await until(lambda: names(keys, "bob") == ["bob"])
        file.change(lambda text: without_key(text, "alice"))
        await until(lambda: names(keys, "alice") == [])
        assert names(keys, "own") == ["default"]

    watched(keys, test)
    assert events.events == []


def broken(file: KeyFile) -> None:
    file.path.write_text(file.path.read_text() + '[keys.b]\nsha256 = "SECRET"\n')


def emptied_of_sense(file: KeyFile) -> None:
    file.path.write_text("SECRET")


def removed(file: KeyFile) -> None:
    file.path.unlink()


def opened_to_others(file: KeyFile) -> None:
    file.path.chmod(0o644)


def with_the_server_s_own(file: KeyFile) -> None:
    file.change(lambda text: with_key(text, Key(key_digest(b"own"), Client("twin"))))


@pytest.mark.parametrize("spoil", [broken, emptied_of_sense, removed, opened_to_others, with_the_server_s_own])
def test_a_file_that_cannot_be_used_keeps_the_old_keys_and_is_told_once(
    file: KeyFile, spoil: Callable[[KeyFile], None], caplog: pytest.LogCaptureFixture
) -> None:
    events = RecordingEvents()
    keys = server_keys(file, events)
    good = file.path.read_text()

    async def test() -> None:
        spoil(file)
        await until(lambda: bool(events.of("FaultObserved")))
        for _ in range(10):  # looked at again and again, and told once
            await asyncio.sleep(0.01)
        assert names(keys, "alice") == ["alice"]
        assert names(keys, "own") == ["default"]
        assert names(keys, "stranger", "") == []
        keys.look_now()
        await until(lambda: len(events.of("FaultObserved")) == 2)
        with private_file(file.path) as stream:  # in one step: a look at a part of it would be told as well
            stream.write(good.encode())
        add(file, "bob")
        await until(lambda: names(keys, "bob") == ["bob"])

    with caplog.at_level(logging.INFO, "cairn.keys"):
        watched(keys, test)
    faults = events.of("FaultObserved")
    assert {fault.where for fault in faults} == {"keys.read"}  # type: ignore[attr-defined]
    assert len(faults) == 2
    assert "the keys of before stay" in caplog.text
    assert "SECRET" not in caplog.text + repr(faults)


def test_a_signal_reads_it_without_waiting(file: KeyFile) -> None:
    keys = server_keys(file, RecordingEvents(), look_every_s=10 * PATIENCE_S)

    async def test() -> None:
        add(file, "bob")
        keys.look_now()
        await until(lambda: names(keys, "bob") == ["bob"])

    watched(keys, test)


@pytest.mark.parametrize("spoil", [broken, emptied_of_sense, removed, opened_to_others, with_the_server_s_own])
def test_a_server_does_not_start_with_it(file: KeyFile, spoil: Callable[[KeyFile], None]) -> None:
    spoil(file)
    with pytest.raises(InvalidKeys):
        server_keys(file, RecordingEvents())
