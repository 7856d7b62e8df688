"""The link to a CUDA device: uploads are staged, downloads are exact, and no call disturbs what others record. Over a
driver whose device is host memory, and kernels that only note what they were to read."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.mlx.cuda.link import NUM_PIECES, PIECE_BYTES, SMALL_BYTES, CudaDriver, CudaLink, Downloads
from adapters.mlx.state import cuda_link
from tests.support.mlx.fake_driver import FakeDriver
from tests.support.patience import PATIENCE_S

SIZE = 5 << 16
STAGED, BY_DRIVER = "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoH_v2"
AT_FIRST, RELAXED = 0, 2


# ---- the driver ----------------------------------------------------------------------------------------------------


class NotingLibrary:
    """libcuda.so.1, as far as it is looked at. `status`: of every call that is not about the thread."""

    def __init__(self, status: int = 0) -> None:
        self.mode = AT_FIRST
        self.modes: dict[str, int] = {}
        self._status = status

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802 - the driver's name
        held = mode._obj
        self.mode, held.value = held.value, self.mode
        return 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*_: object) -> int:
            self.modes[name] = self.mode
            return self._status if name == "cuMemHostAlloc" else 0

        return call


def test_a_call_is_made_in_the_relaxed_mode_and_leaves_the_threads_own() -> None:
    library = NotingLibrary()
    CudaDriver(library).call("cuMemHostAlloc", ctypes.c_size_t(1))
    assert library.modes["cuMemHostAlloc"] == RELAXED
    assert library.mode == AT_FIRST


def test_so_does_a_call_that_fails() -> None:
    library = NotingLibrary(status=2)
    with pytest.raises(RuntimeError, match="cuMemHostAlloc failed with CUDA error 2"):
        CudaDriver(library).call("cuMemHostAlloc", ctypes.c_size_t(1))
    assert library.mode == AT_FIRST


# ---- to the host ---------------------------------------------------------------------------------------------------


def on_device(seed: int, size_bytes: int = SIZE) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size_bytes, np.uint8)


def copied(downloads: Downloads, array: NDArray[np.uint8]) -> memoryview:
    return downloads.copy_out(array.ctypes.data, array.nbytes)


@pytest.mark.parametrize("size_bytes", [1, SMALL_BYTES - 1, SIZE, PIECE_BYTES, 2 * PIECE_BYTES + 17])
def test_a_copy_is_exact_and_stays_as_it_is(size_bytes: int) -> None:
    driver = FakeDriver()
    downloads = Downloads(driver)
    arrays = [on_device(seed, size_bytes) for seed in range(2)]
    views = [copied(downloads, array) for array in arrays]
    assert [bytes(view) for view in views] == [array.tobytes() for array in arrays]
    assert all(view.readonly and view.format == "B" for view in views)
    assert (BY_DRIVER in driver.calls) == (size_bytes < SMALL_BYTES)


def test_what_is_locked_does_not_grow() -> None:
    driver = FakeDriver()
    downloads = Downloads(driver)
    held = [copied(downloads, on_device(seed)) for seed in range(3 * NUM_PIECES)]
    assert len(held) > len(driver.locked) == len(driver.streams) == NUM_PIECES
    assert sum(memory.nbytes for memory in driver.locked.values()) == NUM_PIECES * PIECE_BYTES


@pytest.mark.parametrize("call", [STAGED, "cuStreamSynchronize"])
def test_a_failed_copy_raises_and_its_piece_is_not_used_again(call: str) -> None:
    """It may still arrive there. Without a piece the driver stages."""
    driver = FakeDriver()
    downloads = Downloads(driver)
    for _ in range(NUM_PIECES):
        driver.fails_on = call
        with pytest.raises(RuntimeError, match=call):
            copied(downloads, on_device(1))
        driver.fails_on = ""
    before = driver.calls.count(STAGED)
    assert bytes(copied(downloads, on_device(2))) == on_device(2).tobytes()
    assert driver.calls.count(STAGED) == before
    assert driver.calls[-1] == BY_DRIVER


def test_threads_copy_at_once() -> None:
    downloads = Downloads(FakeDriver())
    at_once = Barrier(2 * NUM_PIECES, timeout=PATIENCE_S)

    def read(first: int) -> None:
        for seed in range(first, first + 10):
            array = on_device(seed)
            at_once.wait()
            assert bytes(copied(downloads, array)) == array.tobytes()

    with ThreadPoolExecutor(2 * NUM_PIECES) as pool:
        for future in [pool.submit(read, 100 * thread) for thread in range(2 * NUM_PIECES)]:
            future.result()


# ---- to the device -------------------------------------------------------------------------------------------------


class Bus:
    """A link, and what its kernel was to read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, int]] = []
        monkeypatch.setattr(cuda_link, "_kernel", lambda *_: self._read_host)
        self.link = CudaLink(FakeDriver())

    def _read_host(self, *, inputs: list[mx.array], output_shapes: list[tuple[int]], **_: Any) -> list[mx.array]:
        self.asked.append((int(inputs[0].item()), output_shapes[0][0]))
        return [mx.zeros(output_shapes[0], mx.uint8)]

    def read(self) -> list[bytes]:
        """What lies where the kernel reads."""
        return [ctypes.string_at(address, size_bytes) for address, size_bytes in self.asked]


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Bus:
    return Bus(monkeypatch)


def test_pieces_are_staged_joined(bus: Bus) -> None:
    words = on_device(3, 9600).view(np.uint16).reshape(3, 2, 800)
    there = bus.link.upload([words[:1], words[1:]], 0, mx.bfloat16)
    assert there.shape == (3, 2, 800)
    odd = on_device(4, 33)
    bus.link.upload([odd], 0, mx.uint8)
    bus.link.settle()
    assert [size for _, size in bus.asked] == [9600, 48], "a kernel reads sixteen bytes at a time"
    assert [found[: len(data)] for found, data in zip(bus.read(), (words.tobytes(), odd.tobytes()), strict=True)] == [
        words.tobytes(),
        odd.tobytes(),
    ]


def test_an_upload_that_failed_fails_no_later_one(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[list[mx.array]] = []

    def evaluate(arrays: list[mx.array]) -> None:
        evaluated.append(arrays)
        if len(evaluated) == 1:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(cuda_link, "evaluate", evaluate)
    bus.link.upload([on_device(1)], 0, mx.uint8)
    with pytest.raises(RuntimeError, match="out of memory"):
        bus.link.settle()
    bus.link.upload([on_device(2)], 0, mx.uint8)
    bus.link.settle()
    assert [len(arrays) for arrays in evaluated] == [1, 1]
