"""Estimates go by the limits that MLX goes by, wherever those come from; and prefill is held to one of Cairn's own."""

from random import Random

import mlx.core as mx
import pytest

from adapters.mlx import run_ahead
from adapters.mlx.run_ahead import held_ahead, most_ahead_bytes
from domain.memory.op_trace import RunAhead

NO_LIMIT = 1 << 40


@pytest.mark.parametrize(
    ("ops", "elements", "expected"),
    [
        (None, None, RunAhead(100, 1000 << 20)),
        ("20", None, RunAhead(20, 1000 << 20)),
        (None, "400", RunAhead(100, 400 << 20)),
        ("0", "many", RunAhead(0, 0)),
        ("+-5", "²", RunAhead(0, 0)),
        (" +7 and more", "-3", RunAhead(7, 0)),
    ],
)
def test_what_is_set_counts(
    ops: str | None, elements: str | None, expected: RunAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device of CUDA's, as far as this can tell."""
    monkeypatch.setattr(run_ahead, "on_cpu", lambda: False)
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    for name, value in (("MLX_MAX_OPS_PER_BUFFER", ops), ("MLX_MAX_MB_PER_BUFFER", elements)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert run_ahead.run_ahead() == expected


def on_a_device(monkeypatch: pytest.MonkeyPatch, **info: int) -> None:
    monkeypatch.setattr(run_ahead, "on_cpu", lambda: False)
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(mx, "device_info", lambda: info)


@pytest.mark.parametrize(("total_bytes", "expected"), [(80 << 30, 2 << 30), (24 << 30, 3 << 29), (8 << 30, 1 << 29)])
def test_a_device_that_has_less_is_run_ahead_of_by_less(
    total_bytes: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_device(monkeypatch, total_memory=total_bytes)
    assert most_ahead_bytes() == expected


def test_only_on_cuda_is_prefill_held(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_device(monkeypatch)
    assert most_ahead_bytes() is None, "a device that does not say what it has"
    on_a_device(monkeypatch, total_memory=64 << 30)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    assert most_ahead_bytes() is None
    monkeypatch.setattr(run_ahead, "on_cpu", lambda: True)
    assert most_ahead_bytes() is None


class Device:
    """MLX's memory calls over a device that is behind: `held_bytes` stay, `under_way_bytes` are alive until it is
    waited for."""

    def __init__(self, limit: int = NO_LIMIT) -> None:
        self.held_bytes = self.under_way_bytes = 0
        self.limit = limit
        self.is_lost = False

    def synchronize(self) -> None:
        if self.is_lost:
            raise RuntimeError("the device is lost")
        self.under_way_bytes = 0

    def get_active_memory(self) -> int:
        return self.held_bytes + self.under_way_bytes

    def set_memory_limit(self, limit: int, /) -> int:
        before, self.limit = self.limit, limit
        return before

    def hand_over(self, temporary_bytes: int, kept_bytes: int) -> None:
        """One operation after another, as MLX does it: above the limit it waits for what is under way."""
        self.held_bytes += kept_bytes
        for _ in range(temporary_bytes):
            self.under_way_bytes += 1
            if self.get_active_memory() > self.limit:
                self.synchronize()


def test_a_chunk_is_held_to_the_bound_whatever_happened_before_it():
    """Chunks overlap, and between two of them others decode, are restored, captured, joined, closed or loaded: what is
    alive beyond what is held never passes the bound, and never has less than it, or it would wait without need."""
    random, device, bound = Random(5), Device(), 100
    for _ in range(500):
        grown, temporary = random.randrange(50), random.randrange(400)
        with held_ahead(bound + grown, device):
            assert device.limit == device.held_bytes + bound + grown
            device.hand_over(temporary, grown)
        assert device.limit == NO_LIMIT
        assert device.under_way_bytes == min(temporary, bound) or temporary > bound >= device.under_way_bytes
        match random.randrange(4):
            case 0:  # a decode step: nothing holds it, and what it sampled is read
                device.hand_over(random.randrange(1000), 1)
                device.synchronize()
            case 1:  # something is captured, restored or loaded, and is still on its way
                device.hand_over(random.randrange(100), random.randrange(1000))
            case 2:  # something is let go of
                device.held_bytes -= random.randrange(device.held_bytes + 1)
            case _:  # the next chunk at once
                pass


def test_the_limit_is_as_before_whatever_comes_of_it():
    device = Device()
    with pytest.raises(RuntimeError, match="chunk"), held_ahead(10, device):
        raise RuntimeError("the chunk failed")
    assert device.limit == NO_LIMIT
    device.is_lost = True
    with pytest.raises(RuntimeError, match="lost"), held_ahead(10, device):
        pass
    assert device.limit == NO_LIMIT


def test_a_limit_that_is_lower_already_stays():
    device = Device(limit=50)
    device.held_bytes = 45
    with held_ahead(10, device):
        assert device.limit == 50
    with held_ahead(3, device):
        assert device.limit == 48
    assert device.limit == 50


def test_what_nothing_bounds_is_not_waited_for():
    device = Device()
    device.under_way_bytes = 7
    with held_ahead(None, device):
        assert (device.under_way_bytes, device.limit) == (7, NO_LIMIT)
