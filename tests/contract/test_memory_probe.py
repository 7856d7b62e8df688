"""Every MemoryProbe keeps the port's contract: readings that belong together, from any thread, and no guesses."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx.runtime.device import MlxMemory
from adapters.system.machine import SystemMemory
from application.ports.compute import MemoryProbe
from domain.memory.ledger import MemoryReading
from tests.support.engines.fake_mac import FakeMac
from tests.support.engines.guards import FakeMemory

GIB = 1 << 30


def a_device(
    monkeypatch: pytest.MonkeyPatch, *, metal: bool, info: dict[str, object], footprint: int = 2 * GIB
) -> MlxMemory:
    """MLX as it describes itself on an accelerator; what this machine lacks is played."""
    readings: dict[str, Any] = {"get_active_memory": 3 * GIB, "get_cache_memory": GIB, "device_info": info}
    monkeypatch.setattr("adapters.mlx.runtime.device.on_cpu", lambda: False)
    monkeypatch.setattr(mx.metal, "is_available", lambda: metal)
    for name, value in readings.items():
        monkeypatch.setattr(mx, name, lambda value=value: value)
    return MlxMemory(FakeMemory(64 * GIB, footprint, 20 * GIB))


@pytest.fixture(params=["fake", "system", "mac", "mlx here", "metal", "cuda"])
def probe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MemoryProbe:
    match request.param:
        case "fake":
            return FakeMemory(8 * GIB, GIB, 2 * GIB)
        case "system":
            return SystemMemory()
        case "mac":
            monkeypatch.setattr(sys, "platform", "darwin")
            return SystemMemory(mac=FakeMac())
        case "metal":
            return a_device(monkeypatch, metal=True, info={"max_recommended_working_set_size": 48 * GIB})
        case "cuda":
            return a_device(monkeypatch, metal=False, info={"total_memory": 80 * GIB, "free_memory": 70 * GIB})
        case _:
            return MlxMemory(SystemMemory())


def check(reading: MemoryReading) -> None:
    total, available, held = reading.total_bytes, reading.available_bytes, reading.held_bytes
    assert total is None or total > 0
    assert available is None or available >= 0
    assert held is None or (total is not None and 0 <= reading.cached_bytes <= held <= total)
    assert available is None or total is None or available <= total


def test_readings_belong_together_on_any_thread(probe: MemoryProbe):
    with ThreadPoolExecutor(2) as pool:
        for reading in [probe.read(), *(told.result() for told in [pool.submit(probe.read) for _ in range(4)])]:
            check(reading)


def test_mlx_on_a_cpu_counts_all_that_the_process_holds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("adapters.mlx.runtime.device.on_cpu", lambda: True)
    monkeypatch.setattr(mx, "get_cache_memory", lambda: GIB)
    reading = MlxMemory(FakeMemory(8 * GIB, 3 * GIB, 4 * GIB)).read()
    assert reading == MemoryReading(8 * GIB, 4 * GIB, 3 * GIB, GIB)
    assert reading.used_bytes == 2 * GIB


@pytest.mark.parametrize(("footprint", "held"), [(2, 4), (9, 9)], ids=["buffers not touched yet", "more than buffers"])
def test_metal_holds_the_process_s_footprint_and_at_least_mlx_s_buffers(
    monkeypatch: pytest.MonkeyPatch, footprint: int, held: int
):
    """Not their sum: the footprint has the buffers in it."""
    info: dict[str, object] = {"max_recommended_working_set_size": 48 * GIB}
    probe = a_device(monkeypatch, metal=True, info=info, footprint=footprint * GIB)
    assert probe.read() == MemoryReading(48 * GIB, 20 * GIB, held * GIB, GIB)


def test_cuda_tells_what_is_free_on_the_device(monkeypatch: pytest.MonkeyPatch):
    probe = a_device(monkeypatch, metal=False, info={"total_memory": 80 * GIB, "free_memory": 70 * GIB})
    assert probe.read() == MemoryReading(80 * GIB, 70 * GIB, 4 * GIB, GIB)


@pytest.mark.parametrize("info", [{}, {"total_memory": 0}, {"total_memory": "80 GB"}])
def test_a_device_that_tells_nothing_is_not_guessed(monkeypatch: pytest.MonkeyPatch, info: dict[str, object]):
    reading = a_device(monkeypatch, metal=False, info=info).read()
    assert (reading.total_bytes, reading.available_bytes) == (None, None)
