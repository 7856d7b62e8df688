"""The link to a CUDA device: copies are exact, staging is bounded, no call disturbs what other threads record, and
state that crosses by it is captured and restored bit for bit.

The driver's device is host memory, so an address is that of the array's own bytes.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.mlx.cuda import link as cuda_link
from adapters.mlx.cuda.link import LOCKED_BYTES, NUM_PIECES, PIECE_BYTES, SMALL_BYTES, CudaDriver, CudaLink
from adapters.mlx.state import payload
from adapters.mlx.state import restore as state_restore
from adapters.mlx.state.payload import upload
from tests.support.mlx.tiny_models import names, tiny_model
from tests.support.patience import PATIENCE_S
from tests.support.stores.state_replay import (
    Captured,
    capture,
    continue_greedy,
    open_at,
    prompt_of,
    state_bytes,
    whole_state,
)

SIZE = 5 << 16
SIZES = [1, SMALL_BYTES - 1, SIZE, 2 * PIECE_BYTES + 17]
AT_FIRST, RELAXED = 0, 2
FAMILIES = {
    "llama": "full attention",
    "deepseek_v3": "latents: keys and values of unequal width",
    "minimax_m3_vl": "an indexer whose values have no width",
    "gemma3_text": "rotating windows and full attention",
    "qwen3_next": "gated delta and attention",
    "longcat_flash_ngram": "token ids as a recurrent state",
}
PROMPT = prompt_of(151)
AT_GRID = 96


class FakeDriver:
    """A Driver whose copies on a stream arrive when that is synchronised, not before. The call `fails_on` raises."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails_on = ""
        self.locked: dict[int, NDArray[np.uint8]] = {}
        self._queued: dict[int, list[tuple[int, int, int]]] = {}
        self._lock = Lock()

    def call(self, name: str, *arguments: Any) -> None:
        with self._lock:
            self.calls.append(name)
            if name == self.fails_on:
                raise RuntimeError(f"{name} failed with CUDA error 700")
            getattr(self, f"_{name}")(*arguments)

    def _cuMemHostAlloc(self, out: Any, size: ctypes.c_size_t, _flags: int) -> None:  # noqa: N802 - the driver's name
        memory = np.full(size.value, 0xEE, np.uint8)
        self.locked[memory.ctypes.data] = memory
        out._obj.value = memory.ctypes.data

    def _cuStreamCreate(self, out: Any, flags: int) -> None:  # noqa: N802
        assert flags == 1, "it would wait for the NULL stream"
        out._obj.value = len(self._queued) + 1
        self._queued[out._obj.value] = []

    def _cuMemcpyDtoHAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> None:  # noqa: N802
        self._queued[stream.value].append((to.value, source.value, size.value))

    _cuMemcpyHtoDAsync_v2 = _cuMemcpyDtoHAsync_v2  # noqa: N815

    def _cuStreamSynchronize(self, stream: Any) -> None:  # noqa: N802
        for copy in self._queued[stream.value]:
            ctypes.memmove(*copy)
        self._queued[stream.value].clear()

    def _cuMemcpyDtoH_v2(self, to: Any, source: Any, size: Any) -> None:  # noqa: N802
        ctypes.memmove(to.value, source.value, size.value)

    _cuMemcpyHtoD_v2 = _cuMemcpyDtoH_v2  # noqa: N815


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


def host_address(array: mx.array) -> mx.array:
    """uint64 [1]: the address of an array's own bytes, which are evaluated for it."""
    mx.eval(array)
    found = np.asarray(memoryview(array)).__array_interface__["data"][0]  # type: ignore[arg-type]
    return mx.array([found], dtype=mx.uint64)


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


def uploads(link: CudaLink, *parts: NDArray[np.uint8]) -> bool:
    """True if the device has these parts, joined, after an upload."""
    target = mx.zeros(sum(part.size for part in parts), mx.uint8)
    link.write([(target, [part.data.toreadonly() for part in parts])])
    return bytes(memoryview(np.array(target))) == b"".join(part.tobytes() for part in parts)


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


@pytest.mark.parametrize("size_bytes", SIZES)
def test_copies_are_exact_and_a_download_stays(link: CudaLink, driver: FakeDriver, size_bytes: int) -> None:
    arrays = [random_bytes(seed, size_bytes) for seed in range(3)]
    views = [downloaded(link, array) for array in arrays]
    assert [bytes(view) for view in views] == [array.tobytes() for array in arrays]
    assert all(view.readonly and view.format == "B" for view in views)
    assert ("cuMemcpyDtoH_v2" in driver.calls) == (size_bytes < SMALL_BYTES)
    assert uploads(link, *arrays)


@pytest.mark.parametrize("cuts", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 2), (3, 1, 3, 0)], ids=str)
def test_parts_of_one_buffer_are_copied_in_their_order(link: CudaLink, cuts: tuple[int, ...]) -> None:
    """Adjacent parts are one copy, over the end of a piece as well."""
    size_bytes = PIECE_BYTES // 2 - 5
    whole = random_bytes(1, 4 * size_bytes)
    assert uploads(link, *(whole[at * size_bytes : (at + 1) * size_bytes] for at in cuts))


@pytest.mark.parametrize("call", ["cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"])
def test_a_failed_copy_raises_and_its_piece_is_not_used_again(link: CudaLink, driver: FakeDriver, call: str) -> None:
    """The failed copy may still write to it. Without a piece the driver stages the bytes itself."""
    for _ in range(NUM_PIECES):
        driver.fails_on = call
        with pytest.raises(RuntimeError, match=call):
            downloaded(link, random_bytes(1))
        driver.fails_on = ""
    assert bytes(downloaded(link, random_bytes(2))) == random_bytes(2).tobytes()
    assert uploads(link, random_bytes(3))
    assert driver.calls[-1] == "cuMemcpyHtoD_v2"


def test_a_failed_upload_raises_and_the_next_one_succeeds(link: CudaLink, driver: FakeDriver) -> None:
    driver.fails_on = "cuMemcpyHtoDAsync_v2"
    with pytest.raises(RuntimeError, match="cuMemcpyHtoDAsync_v2"):
        uploads(link, random_bytes(1))
    driver.fails_on = ""
    assert uploads(link, random_bytes(2))


def test_threads_download_at_once_within_the_locked_memory(link: CudaLink, driver: FakeDriver) -> None:
    at_once = Barrier(2 * NUM_PIECES, timeout=PATIENCE_S)

    def read(first: int) -> None:
        for seed in range(first, first + 5):
            array = random_bytes(seed)
            at_once.wait()
            assert bytes(downloaded(link, array)) == array.tobytes()

    with ThreadPoolExecutor(2 * NUM_PIECES) as pool:
        for future in [pool.submit(read, 100 * thread) for thread in range(2 * NUM_PIECES)]:
            future.result()
    assert sum(memory.nbytes for memory in driver.locked.values()) == LOCKED_BYTES


CASES = [
    *((name, mx.float32) for name in FAMILIES if name in names()),
    ("llama", mx.bfloat16),
    ("gemma3_text", mx.bfloat16),
]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda one: str(one).rpartition(".")[2])
def test_restoring_over_a_link_changes_no_bit(
    name: str, dtype: mx.Dtype, link: CudaLink, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From captured state, from bytes of the host, and from what was uploaded before; pieces are joined on the
    device."""

    def num_written() -> int:
        return sum("HtoD" in call for call in driver.calls)

    monkeypatch.setattr(payload, "find_link", lambda: link)
    monkeypatch.setattr(payload, "PIECE_BYTES", 5_000)
    monkeypatch.setattr(state_restore, "on_cpu", lambda: False)
    model = tiny_model(name, dtype)
    cold = open_at(model, PROMPT)
    expected = whole_state(model, cold)
    output = continue_greedy(model, cold, PROMPT, 6)
    captured = capture(model, PROMPT, AT_GRID)
    assert not num_written()
    on_host = captured.on_host()
    blocks = [dict(zip(block, upload(list(block.values())), strict=True)) for block in on_host.blocks]
    snapshot = dict(zip(on_host.snapshot, upload(list(on_host.snapshot.values())), strict=True))
    assert [state_bytes(block) for block in blocks] == [state_bytes(block) for block in on_host.blocks]
    num_uploaded = num_written()
    for source in (captured, Captured(AT_GRID, blocks, snapshot), on_host):
        assert (num_written() == num_uploaded) == (num_uploaded > 0), "restoring is the device's own work"
        restored = open_at(model, PROMPT, source)
        assert whole_state(model, restored) == expected
        assert continue_greedy(model, restored, PROMPT, 6) == output
    assert num_written() > num_uploaded
