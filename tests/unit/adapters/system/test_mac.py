"""What is asked of macOS, on a Mac that is played, and on a system that lacks its calls."""

import logging
import os
import plistlib
import sys
from pathlib import Path

import pytest

from adapters.system import mac
from adapters.system.awake import SleepGuard
from adapters.system.backup import TAG, exclude_from_backup
from adapters.system.machine import SystemMemory
from application.events import Event, RequestEnded, RequestQueued
from domain.ids import ModelId, RequestId
from domain.memory.ledger import MemoryReading
from domain.request.request import RequestKind, Usage
from tests.support.engines.fake_mac import FakeMac

GIB = 1 << 30


@pytest.fixture(autouse=True)
def a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 GiB; nothing was logged yet."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 16_384, "SC_PHYS_PAGES": 64 * GIB // 16_384}.__getitem__)
    mac._report.cache_clear()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("level", "footprint", "available"),
    [(50, 8, 32), (90, 40, 24), (0, 8, 0), (100, 65, 0)],
    ids=["others wired", "own pages are no room", "nothing left", "a footprint beyond all memory"],
)
def test_a_mac_says_what_is_available_and_held(level: int, footprint: int, available: int):
    reading = SystemMemory(mac=FakeMac(level=level, footprint=footprint * GIB)).read()
    assert reading == MemoryReading(64 * GIB, available * GIB, footprint * GIB)


@pytest.mark.parametrize("level", [-1, 101])
def test_a_level_that_is_no_percentage_is_unknown(level: int):
    assert SystemMemory(mac=FakeMac(level=level)).read().available_bytes is None


def test_a_system_without_the_calls_is_not_guessed_and_is_logged_once(caplog: pytest.LogCaptureFixture):
    probe = SystemMemory(mac=FakeMac(is_absent=True))
    assert {probe.read(), probe.read()} == {MemoryReading(64 * GIB)}
    assert len([line for line in caplog.messages if "available memory" in line]) == 1


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="a libc without these symbols")
def test_the_real_calls_fail_softly_where_the_library_lacks_them(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    assert SystemMemory().read() == MemoryReading(64 * GIB)
    exclude_from_backup(tmp_path / "store")
    guard = SleepGuard()
    for event in (queued("a"), ended("a")):
        guard.emit(event)
    assert guard.failures() == {}
    assert (
        sorted(line.split(": ")[0].split("Cairn ")[1].split()[0] for line in caplog.messages)
        == ["keep"] * 2 + ["read"] * 2
    )


def queued(id: str) -> Event:
    model = ModelId("toy")
    kind = RequestKind.CHAT
    return RequestQueued(id=RequestId(id), model=model, requested_model=model, kind=kind, num_prompt_tokens=3, at_ns=0)


def ended(id: str) -> Event:
    return RequestEnded(id=RequestId(id), reason="stop", usage=Usage(3, 1), at_ns=0)


def test_the_machine_stays_awake_while_any_request_is_open():
    calls = FakeMac()
    guard = SleepGuard(calls)
    for event, is_held in ((queued("a"), 1), (queued("b"), 1), (ended("a"), 1), (ended("b"), 0), (ended("b"), 0)):
        guard.emit(event)
        assert len(calls.assertions) == is_held, event
    guard.emit(queued("c"))
    assert (len(calls.assertions), calls.num_asserted) == (1, 2)


def test_a_refused_assertion_costs_no_request_anything_and_is_logged_once(caplog: pytest.LogCaptureFixture):
    guard = SleepGuard(FakeMac(is_absent=True))
    for event in (queued("a"), ended("a"), queued("b"), ended("b")):
        guard.emit(event)
    assert guard.failures() == {}
    assert [line for line in caplog.messages if "awake" in line] == [
        "macOS does not let Cairn keep the machine awake: no such call"
    ]


def test_a_folder_is_left_out_of_backups_once(tmp_path: Path):
    calls, folder = FakeMac(), tmp_path / "cairn"
    exclude_from_backup(folder, calls)
    assert (folder / TAG).read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    name, value = calls.attributes.pop(str(folder))
    assert (name, plistlib.loads(value)) == ("com.apple.metadata:com_apple_backup_excludeItem", "com.apple.backupd")
    exclude_from_backup(folder, calls)
    assert calls.attributes == {}


def test_elsewhere_a_folder_has_the_tag_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "linux")
    calls = FakeMac()
    exclude_from_backup(tmp_path, calls)
    assert ((tmp_path / TAG).exists(), calls.attributes) == (True, {})


def test_a_folder_that_cannot_be_marked_is_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    (tmp_path / "file").touch()
    exclude_from_backup(tmp_path / "file" / "store", FakeMac())
    assert "cannot be marked" in caplog.text
