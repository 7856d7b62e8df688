"""Memory that a kernel reads where it lies is used again, given back with its last view, and never guessed to be it;
over a driver whose device is host memory."""

from threading import Thread

import numpy as np
import pytest

from adapters.mlx.cuda_driver import Driver
from adapters.mlx.cuda_link import joined_at
from adapters.mlx.locked_memory import MAX_FAILURES, LockedMemory
from adapters.zstd.buffer_pool import BufferPool
from tests.support.fake_driver import FakeDriver
from tests.support.patience import PATIENCE_S

SIZE = 100_000


def locked_by(driver: Driver, max_bytes: int = 64 * SIZE) -> LockedMemory:
    return LockedMemory(lambda: driver, max_bytes)


def test_it_is_given_back_with_the_last_view_of_it() -> None:
    driver = FakeDriver()
    memory = locked_by(driver)
    array = memory.allocate(SIZE)
    assert array.size >= SIZE
    assert memory.locked_bytes == array.size
    address = array.ctypes.data
    assert memory.holds(address, array.size)
    assert not memory.holds(address + 1, array.size)
    assert not memory.holds(address - 16, 16)
    part = np.frombuffer(array[10:20].data.toreadonly(), np.uint8)
    del array
    assert memory.holds(address, SIZE)
    assert not driver.calls.count("cuMemFreeHost")
    del part
    assert not memory.holds(address, 1)
    assert memory.locked_bytes == 0
    assert not driver.locked


def test_no_more_is_locked_than_may_be() -> None:
    driver = FakeDriver()
    memory = locked_by(driver, 3 * SIZE)
    arrays = [memory.allocate(SIZE) for _ in range(5)]
    assert [memory.holds(array.ctypes.data, SIZE) for array in arrays] == [True] * 2 + [False] * 3
    assert len(driver.locked) == 2
    del arrays[0]
    assert memory.holds(memory.allocate(SIZE).ctypes.data, SIZE)


def test_a_driver_that_locks_nothing_is_asked_a_few_times(caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeDriver(num_host_allocations=0)
    memory = locked_by(driver)
    arrays = [memory.allocate(SIZE) for _ in range(3 * MAX_FAILURES)]
    assert not any(memory.holds(array.ctypes.data, 1) for array in arrays)
    assert driver.calls == ["cuMemHostAlloc"] * MAX_FAILURES
    assert len(caplog.messages) == 1
    assert memory.locked_bytes == 0


def test_a_driver_that_refuses_for_a_moment_is_asked_again() -> None:
    driver = FakeDriver()
    memory = locked_by(driver)
    driver.fails_on = "cuMemHostAlloc"
    memory.allocate(SIZE)
    driver.fails_on = ""
    array = memory.allocate(SIZE)
    assert memory.holds(array.ctypes.data, SIZE)


def test_momentary_refusals_do_not_add_up() -> None:
    driver = FakeDriver()
    memory = locked_by(driver)
    for _ in range(2 * MAX_FAILURES):
        driver.fails_on = "cuMemHostAlloc"
        memory.allocate(SIZE)
        driver.fails_on = ""
        array = memory.allocate(SIZE)
        assert memory.holds(array.ctypes.data, SIZE)


def test_without_a_driver_it_is_ordinary() -> None:
    def find_driver() -> Driver:
        raise OSError("libcuda.so.1: cannot open shared object file")

    memory = LockedMemory(find_driver)
    assert memory.allocate(SIZE).size == SIZE


def test_a_pool_uses_it_again_only_when_nobody_reads_it() -> None:
    driver = FakeDriver()
    pool = BufferPool()
    pool.allocate_by(locked_by(driver).allocate)
    read = pool.take(SIZE)[10:20].data.toreadonly()
    others = [pool.take(SIZE) for _ in range(3)]
    others[0][:], others[1][:], others[2][:] = 1, 2, 3
    assert bytes(read) == b"\xee" * 10
    assert len(driver.locked) == 4
    del read, others
    again = [pool.take(SIZE) for _ in range(4)]
    assert len(driver.locked) == 4
    assert len({array.ctypes.data for array in again}) == 4
    pool.give_back()
    assert len(driver.locked) == 4
    del again
    pool.give_back()
    assert not driver.locked


def test_threads_never_get_the_same_buffer() -> None:
    pool = BufferPool(keep_bytes=8 * SIZE)
    pool.allocate_by(locked_by(FakeDriver()).allocate)
    wrong: list[int] = []

    def use(number: int) -> None:
        for _ in range(200):
            taken = pool.take(SIZE)
            taken[:8] = number
            taken[-8:] = number
            if {*taken[:8].tolist(), *taken[-8:].tolist()} != {number}:
                wrong.append(number)

    threads = [Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_what_lies_joined_already_is_found() -> None:
    memory = np.empty(4096 + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 16 :][:4096]
    first, second, third = (memory[at : at + 512].view(np.uint16).reshape(1, 4, 64) for at in (0, 512, 1024))
    assert joined_at([first, second, third], 0) == first.ctypes.data
    assert joined_at([second], 1) == second.ctypes.data
    assert joined_at([first, second], 1) == first.ctypes.data  # one in front of the axis
    assert joined_at([first, second], 2) is None
    assert joined_at([first, third], 0) is None
    assert joined_at([second, first], 0) is None
    assert joined_at([first[:, ::2]], 0) is None
    assert joined_at([memory[8:24]], 0) is None  # where a kernel cannot read sixteen bytes at a time
