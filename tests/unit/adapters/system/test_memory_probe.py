"""Memory readings from made-up machines and containers."""

import sys
from pathlib import Path

import pytest

from adapters.system.machine import SystemMemory
from domain.memory.ledger import MemoryReading

GIB = 2**30
pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="reads /proc")


@pytest.fixture
def machine(tmp_path: Path) -> SystemMemory:
    """16 GiB, 8 of them available, no container."""
    write(tmp_path / "proc/meminfo", f"MemTotal: {16 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\nHugePages_Total: 0\n")
    return SystemMemory(tmp_path / "proc", tmp_path / "cgroup")


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_machine_without_container(machine: SystemMemory):
    reading = machine.read()
    assert (reading.total_bytes, reading.available_bytes) == (16 * GIB, 8 * GIB)


@pytest.mark.parametrize(
    ("membership", "folder", "limit", "usage", "stat"),
    [
        ("0::/kube/pod\n", "cgroup/kube", "memory.max", "memory.current", "inactive_file"),
        ("9:name=systemd:/\n4:memory:/job\n", "cgroup/memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes",
         "total_inactive_file"),
    ],
    ids=["version 2, a parent's limit", "version 1"],
)  # fmt: skip
def test_container_limit_counts(
    machine: SystemMemory, tmp_path: Path, membership: str, folder: str, limit: str, usage: str, stat: str
):
    write(tmp_path / "proc/self/cgroup", membership)
    write(tmp_path / folder / limit, str(4 * GIB))
    write(tmp_path / folder / usage, str(3 * GIB))
    write(tmp_path / folder / "memory.stat", f"anon 5\n{stat} {GIB}\n")
    reading = machine.read()
    assert (reading.total_bytes, reading.available_bytes) == (4 * GIB, 2 * GIB)


def test_pages_of_files_are_neither_held_nor_used(machine: SystemMemory, tmp_path: Path):
    """A store's map stays resident and recently used as long as no other process needs the memory."""
    status = f"VmRSS: {5 * 2**20} kB\nRssAnon:\t{2**20} kB\nRssFile: {3 * 2**20} kB\nRssShmem: {2**20} kB\n"
    write(tmp_path / "proc/self/status", status)
    write(tmp_path / "proc/self/cgroup", "0::/pod\n")
    write(tmp_path / "cgroup/pod/memory.max", str(8 * GIB))
    write(tmp_path / "cgroup/pod/memory.current", str(6 * GIB))
    write(tmp_path / "cgroup/pod/memory.stat", f"anon 5\nactive_file {2 * GIB}\ninactive_file {GIB}\n")
    assert machine.read() == MemoryReading(8 * GIB, 5 * GIB, 2 * GIB)


def test_what_is_left_is_what_the_fullest_container_leaves(machine: SystemMemory, tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "0::/slice/own\n")
    for folder, limit, usage in (("slice", 6, 5), ("slice/own", 4, 1)):
        write(tmp_path / "cgroup" / folder / "memory.max", str(limit * GIB))
        write(tmp_path / "cgroup" / folder / "memory.current", str(usage * GIB))
    reading = machine.read()
    assert (reading.total_bytes, reading.available_bytes) == (4 * GIB, GIB)


@pytest.mark.parametrize("limit", ["max\n", str(2**63 - 4096), str(64 * GIB)])
def test_limit_that_limits_nothing_is_ignored(machine: SystemMemory, tmp_path: Path, limit: str):
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "cgroup/memory.max", limit)
    assert machine.read().total_bytes == 16 * GIB


def test_what_cannot_be_read_is_not_guessed(tmp_path: Path):
    assert SystemMemory(tmp_path, tmp_path).read() == MemoryReading()


def test_a_container_whose_use_cannot_be_read_still_limits(machine: SystemMemory, tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "cgroup/memory.max", str(4 * GIB))
    reading = machine.read()
    assert (reading.total_bytes, reading.available_bytes) == (4 * GIB, 8 * GIB)
