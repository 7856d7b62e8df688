"""What is asked of macOS, on a Mac that is played, and on a system that lacks its calls."""

import os
import sys

import pytest

from adapters.system import mac
from adapters.system.machine import SystemMemory
from domain.memory.ledger import MemoryReading
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
def test_the_real_calls_fail_softly_where_the_library_lacks_them():
    assert SystemMemory().read() == MemoryReading(64 * GIB)
