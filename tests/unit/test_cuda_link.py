"""What crosses the link is read where it was decoded to, if a kernel can, and staged otherwise; over a driver whose
device is host memory, and kernels that only note what they were to read."""

import ctypes
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.mlx import cuda_link
from adapters.mlx.cuda_link import CudaLink
from adapters.mlx.locked_memory import LockedMemory
from tests.support.fake_driver import FakeDriver

SIZE = 100_000


class Bus:
    """A link, what its kernel was to read, and memory that it can read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, int]] = []
        self.driver = FakeDriver()
        self.memory = LockedMemory(lambda: self.driver)
        monkeypatch.setattr(cuda_link, "CudaDriver", lambda: self.driver)
        monkeypatch.setattr(cuda_link, "LOCKED", self.memory)
        monkeypatch.setattr(cuda_link, "_kernel", lambda *_: self._read_host)
        self.link = CudaLink()
        self.num_locked = len(self.driver.locked)  # the staging

    def _read_host(self, *, inputs: list[mx.array], output_shapes: list[tuple[int]], **_: Any) -> list[mx.array]:
        self.asked.append((int(inputs[0].item()), output_shapes[0][0]))
        return [mx.zeros(output_shapes[0], mx.uint8)]

    def decoded(self, seed: int, size_bytes: int = SIZE) -> NDArray[np.uint8]:
        array = self.memory.allocate(size_bytes)[:size_bytes]
        array[:] = np.random.default_rng(seed).integers(0, 256, size_bytes, np.uint8)
        return array

    def read(self) -> list[bytes]:
        """What lies where the kernel reads."""
        return [ctypes.string_at(address, size_bytes) for address, size_bytes in self.asked]


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Bus:
    return Bus(monkeypatch)


def test_what_a_kernel_can_read_is_read_where_it_lies(bus: Bus) -> None:
    plane = bus.decoded(1)
    there = bus.link.upload([plane], 0, mx.uint8)
    tensors = bus.link.upload(
        [plane[at : at + 3200].view(np.uint16).reshape(1, 2, 800) for at in (0, 3200)], 0, mx.bfloat16
    )
    assert there.shape == (SIZE,)
    assert tensors.shape == (2, 2, 800)
    assert [address for address, _ in bus.asked] == [plane.ctypes.data] * 2
    assert bus.read() == [plane.tobytes(), plane[:6400].tobytes()]
    bus.link.settle()


def test_it_is_not_used_again_before_it_has_crossed(bus: Bus) -> None:
    bus.link.upload([bus.decoded(1)], 0, mx.uint8)
    bus.link.upload([bus.decoded(2)], 0, mx.uint8)
    assert len(bus.driver.locked) == bus.num_locked + 2
    bus.link.settle()
    assert len(bus.driver.locked) == bus.num_locked


def test_no_byte_beyond_the_memory_is_read(bus: Bus) -> None:
    """A kernel reads sixteen at a time."""
    whole = bus.memory.allocate(8192)
    whole[:] = 7
    for end in (8192, 8191, 8100):
        bus.link.upload([whole[4096:end]], 0, mx.uint8)
    for address, size_bytes in bus.asked:
        assert bus.memory.holds(address, size_bytes)
    bus.link.settle()


@pytest.mark.parametrize("what", ["ordinary", "at an odd address", "apart", "where it may not"])
def test_what_it_cannot_read_is_staged(bus: Bus, what: str) -> None:
    locked = bus.decoded(3)
    pieces = {
        "ordinary": [locked.copy()],
        "at an odd address": [locked[1:]],
        "apart": [locked[:1600], locked[3200:4800]],
        "where it may not": [locked],
    }[what]
    bus.link.reads_in_place = what != "where it may not"
    bus.link.upload(pieces, 0, mx.uint8)
    bus.link.settle()
    ((address, _),) = bus.asked
    assert not bus.memory.holds(address, 1)
    assert bus.read()[0].startswith(b"".join(piece.tobytes() for piece in pieces))


def test_a_round_trip_that_fails_leaves_nothing_behind(bus: Bus) -> None:
    bus.link.reads_in_place = cuda_link._does_read_in_place(bus.link)  # this kernel returns nothing of what was sent
    assert not bus.link.reads_in_place
    assert len(bus.driver.locked) == bus.num_locked
    bus.asked.clear()
    locked = bus.decoded(4)
    bus.link.upload([locked], 0, mx.uint8)
    bus.link.settle()
    assert bus.read()[0].startswith(locked.tobytes())
    assert not bus.memory.holds(bus.asked[0][0], 1)


def test_an_upload_that_failed_fails_no_later_one(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[list[mx.array]] = []

    def evaluate(arrays: list[mx.array]) -> None:
        evaluated.append(arrays)
        if len(evaluated) == 1:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(cuda_link, "evaluate", evaluate)
    bus.link.upload([bus.decoded(1)], 0, mx.uint8)
    with pytest.raises(RuntimeError, match="out of memory"):
        bus.link.settle()
    bus.link.upload([bus.decoded(2)], 0, mx.uint8)
    bus.link.settle()
    assert [len(arrays) for arrays in evaluated] == [1, 1]
