"""Captured state is copied out exactly, into page-locked memory that is used again, and somewhere else where there is
none; over a driver whose device is host memory."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.mlx.cuda_download import SMALL_BYTES, Downloads
from tests.support.fake_driver import FakeDriver
from tests.support.patience import PATIENCE_S

SIZE = 5 << 16
LOCKED = "cuMemcpyDtoHAsync_v2"
ORDINARY = "cuMemcpyDtoH_v2"


def on_device(seed: int, size_bytes: int = SIZE) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size_bytes, np.uint8)


def copied(downloads: Downloads, array: NDArray[np.uint8]) -> memoryview:
    return downloads.copy_out(array.ctypes.data, array.nbytes)


def address_of(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


def test_what_nobody_reads_any_more_is_used_again() -> None:
    driver = FakeDriver()
    downloads = Downloads(driver)
    addresses: set[int] = set()
    for seed in range(20):
        array = on_device(seed)
        view = copied(downloads, array)
        assert bytes(view) == array.tobytes()
        assert view.readonly
        assert view.format == "B"
        addresses.add(address_of(view))
        del view
    assert len(addresses) == len(driver.locked) == driver.calls.count("cuMemHostAlloc") == 1
    assert driver.calls.count(LOCKED) == 20


def test_what_is_still_read_is_never_written_over() -> None:
    """However little of it: a part of a view, as an array."""
    downloads = Downloads(FakeDriver())
    first = on_device(1)
    part = np.frombuffer(copied(downloads, first)[1000:2000], np.uint8)[::2]
    others = [copied(downloads, on_device(seed)) for seed in range(2, 6)]
    assert part.tobytes() == first[1000:2000:2].tobytes()
    assert len({address_of(view) for view in others}) == len(others)
    assert [bytes(view) for view in others] == [on_device(seed).tobytes() for seed in range(2, 6)]


def test_no_more_is_locked_than_may_be_and_the_rest_is_ordinary() -> None:
    driver = FakeDriver()
    downloads = Downloads(driver, max_locked_bytes=3 * SIZE)
    arrays = [on_device(seed) for seed in range(7)]
    views = [copied(downloads, array) for array in arrays]
    assert [bytes(view) for view in views] == [array.tobytes() for array in arrays]
    assert sum(memory.nbytes for memory in driver.locked.values()) <= 3 * SIZE
    assert (driver.calls.count(LOCKED), driver.calls.count(ORDINARY)) == (3, 4)
    del views
    assert bytes(copied(downloads, arrays[0])) == arrays[0].tobytes()
    assert driver.calls.count(LOCKED) == 4


def test_a_driver_that_locks_no_more_is_not_asked_for_every_block(caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeDriver(num_host_allocations=1)
    downloads = Downloads(driver)
    arrays = [on_device(seed) for seed in range(5)]
    views = [copied(downloads, array) for array in arrays]
    assert [bytes(view) for view in views] == [array.tobytes() for array in arrays]
    assert driver.calls.count("cuMemHostAlloc") == 2
    assert len(driver.streams) == len(driver.locked) == 1
    assert len(caplog.messages) == 1
    assert "cuMemHostAlloc" in caplog.messages[0]


def test_a_driver_that_locks_nothing_copies_all_the_same() -> None:
    array = on_device(1)
    assert bytes(copied(Downloads(FakeDriver(num_host_allocations=0)), array)) == array.tobytes()


def test_what_is_small_needs_no_buffer() -> None:
    driver = FakeDriver()
    array = on_device(1, SMALL_BYTES - 1)
    assert bytes(copied(Downloads(driver), array)) == array.tobytes()
    assert driver.calls == [ORDINARY]


def test_unused_buffers_make_room_for_other_sizes() -> None:
    """As when another model is served: what fits nobody any more is given back, what is read is not."""
    driver = FakeDriver()
    downloads = Downloads(driver, max_locked_bytes=13 * SIZE)
    held = copied(downloads, on_device(1))
    spare = copied(downloads, on_device(2))
    del spare
    large = on_device(3, 11 * SIZE)
    view = copied(downloads, large)
    assert bytes(view) == large.tobytes()
    assert bytes(held) == on_device(1).tobytes()
    assert driver.calls.count(LOCKED) == 3
    assert len(driver.locked) == len(driver.streams) == 2
    too_large = on_device(4, 14 * SIZE)
    assert bytes(copied(downloads, too_large)) == too_large.tobytes()
    assert driver.calls.count(ORDINARY) == 1


def test_what_is_small_does_not_hold_what_is_large() -> None:
    driver = FakeDriver()
    downloads = Downloads(driver)
    copied(downloads, on_device(1, 64 * SMALL_BYTES))
    small = copied(downloads, on_device(2, SMALL_BYTES))
    assert len(driver.locked) == 2
    assert bytes(small) == on_device(2, SMALL_BYTES).tobytes()


def test_sizes_that_grow_by_a_little_share_a_buffer() -> None:
    driver = FakeDriver()
    downloads = Downloads(driver)
    for size in range(SIZE - 100, SIZE):
        assert bytes(copied(downloads, on_device(size, size))) == on_device(size, size).tobytes()
    assert len(driver.locked) == 1


@pytest.mark.parametrize("call", [LOCKED, "cuStreamSynchronize"])
def test_a_failed_copy_is_told_and_its_memory_is_not_used_again(call: str) -> None:
    """It may still arrive."""
    driver = FakeDriver()
    downloads = Downloads(driver)
    driver.fails_on = call
    with pytest.raises(RuntimeError, match=call):
        copied(downloads, on_device(1))
    driver.fails_on = ""
    (doubtful,) = driver.locked
    for seed in range(3):
        view = copied(downloads, on_device(seed))
        assert address_of(view) != doubtful
        assert bytes(view) == on_device(seed).tobytes()


def test_threads_copy_at_once_and_hold_what_they_read() -> None:
    driver = FakeDriver()
    downloads = Downloads(driver, max_locked_bytes=3 * SIZE)
    at_once = Barrier(4, timeout=PATIENCE_S)

    def read(first: int) -> None:
        for seed in range(first, first + 25):
            array = on_device(seed)
            at_once.wait()
            view = copied(downloads, array)
            at_once.wait()  # all four hold one
            assert bytes(view) == array.tobytes()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(read, 100 * thread) for thread in range(4)]:
            future.result()
    assert sum(memory.nbytes for memory in driver.locked.values()) <= 3 * SIZE
    assert driver.calls.count(ORDINARY) >= 25
