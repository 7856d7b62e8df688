"""The link to a CUDA device: copies are exact, staging is bounded, and no call disturbs what other threads record.

The driver's device is host memory, so an address is that of the array's own bytes.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.mlx.cuda import link as cuda_link
from adapters.mlx.cuda.link import LOCKED_BYTES, NUM_PIECES, PIECE_BYTES, SMALL_BYTES, CudaDriver, CudaLink
from tests.support.mlx.fake_driver import FakeDriver, host_address
from tests.support.patience import PATIENCE_S

SIZE = 5 << 16
SIZES = [1, SMALL_BYTES - 1, SIZE, PIECE_BYTES, 2 * PIECE_BYTES + 17]
AT_FIRST, RELAXED = 0, 2


class NotingLibrary:
    """libcuda.so.1 as far as it is called. `status`: of cuMemHostAlloc."""

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


@pytest.mark.parametrize("status", [0, 2])
def test_a_call_uses_the_relaxed_mode_for_itself_only(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    library = NotingLibrary(status)
    for opened in ("CDLL", "PyDLL"):
        monkeypatch.setattr(ctypes, opened, lambda _name: library)
    driver = CudaDriver()
    if status:
        with pytest.raises(RuntimeError, match="cuMemHostAlloc failed with CUDA error 2"):
            driver.call("cuMemHostAlloc", ctypes.c_size_t(1))
    else:
        driver.call("cuMemHostAlloc", ctypes.c_size_t(1))
    assert library.modes["cuMemHostAlloc"] == RELAXED
    assert library.mode == AT_FIRST


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def link(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> CudaLink:
    monkeypatch.setattr(cuda_link, "_kernel", lambda *_: lambda inputs, **_: [host_address(inputs[0])])
    return CudaLink(driver)


def random_bytes(seed: int, size_bytes: int = SIZE) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size_bytes, np.uint8)


def downloaded(link: CudaLink, array: NDArray[np.uint8]) -> memoryview:
    return link.download(mx.array([array.ctypes.data], dtype=mx.uint64), array.nbytes)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_download_is_exact_and_its_bytes_stay(link: CudaLink, driver: FakeDriver, size_bytes: int) -> None:
    arrays = [random_bytes(seed, size_bytes) for seed in range(2)]
    views = [downloaded(link, array) for array in arrays]
    assert [bytes(view) for view in views] == [array.tobytes() for array in arrays]
    assert all(view.readonly and view.format == "B" for view in views)
    assert ("cuMemcpyDtoH_v2" in driver.calls) == (size_bytes < SMALL_BYTES)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_an_upload_joins_its_parts(link: CudaLink, size_bytes: int) -> None:
    sent = [random_bytes(seed, size_bytes) for seed in range(3)]
    first, second = mx.zeros((2, size_bytes), mx.uint8), mx.zeros(size_bytes, mx.uint8)
    link.write([(first, [one.data.toreadonly() for one in sent[:2]]), (second, [sent[2].data])])
    assert bytes(memoryview(np.array(first))) == sent[0].tobytes() + sent[1].tobytes()
    assert bytes(memoryview(np.array(second))) == sent[2].tobytes()


@pytest.mark.parametrize("cuts", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 2), (3, 1, 3, 0)], ids=str)
def test_parts_of_one_buffer_are_copied_in_their_order(link: CudaLink, cuts: tuple[int, ...]) -> None:
    """Adjacent parts are one copy, over the end of a piece as well."""
    size_bytes = PIECE_BYTES // 2 - 5
    whole = random_bytes(1, 4 * size_bytes)
    parts = [whole[at * size_bytes : (at + 1) * size_bytes] for at in cuts]
    target = mx.zeros(len(cuts) * size_bytes, mx.uint8)
    link.write([(target, [part.data for part in parts])])
    assert bytes(memoryview(np.array(target))) == b"".join(part.tobytes() for part in parts)


def test_page_locked_memory_does_not_grow(link: CudaLink, driver: FakeDriver) -> None:
    held = [downloaded(link, random_bytes(seed)) for seed in range(3 * NUM_PIECES)]
    assert len(held) > len(driver.locked) == len(driver.streams) == NUM_PIECES
    assert sum(memory.nbytes for memory in driver.locked.values()) == LOCKED_BYTES


@pytest.mark.parametrize("call", ["cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"])
def test_a_failed_copy_raises_and_its_piece_is_not_used_again(link: CudaLink, driver: FakeDriver, call: str) -> None:
    """The failed copy may still write to it. Without a piece the driver stages the bytes itself."""
    for _ in range(NUM_PIECES):
        driver.fails_on = call
        with pytest.raises(RuntimeError, match=call):
            downloaded(link, random_bytes(1))
        driver.fails_on = ""
    assert bytes(downloaded(link, random_bytes(2))) == random_bytes(2).tobytes()
    target = mx.zeros(SIZE, mx.uint8)
    link.write([(target, [random_bytes(3).data])])
    assert bytes(memoryview(np.array(target))) == random_bytes(3).tobytes()
    assert driver.calls[-1] == "cuMemcpyHtoD_v2"


def test_a_failed_upload_raises_and_the_next_one_succeeds(link: CudaLink, driver: FakeDriver) -> None:
    driver.fails_on = "cuMemcpyHtoDAsync_v2"
    with pytest.raises(RuntimeError, match="cuMemcpyHtoDAsync_v2"):
        link.write([(mx.zeros(SIZE, mx.uint8), [random_bytes(1).data])])
    driver.fails_on = ""
    target = mx.zeros(SIZE, mx.uint8)
    link.write([(target, [random_bytes(2).data])])
    assert bytes(memoryview(np.array(target))) == random_bytes(2).tobytes()


def test_threads_download_at_once(link: CudaLink) -> None:
    at_once = Barrier(2 * NUM_PIECES, timeout=PATIENCE_S)

    def read(first: int) -> None:
        for seed in range(first, first + 5):
            array = random_bytes(seed)
            at_once.wait()
            assert bytes(downloaded(link, array)) == array.tobytes()

    with ThreadPoolExecutor(2 * NUM_PIECES) as pool:
        for future in [pool.submit(read, 100 * thread) for thread in range(2 * NUM_PIECES)]:
            future.result()
