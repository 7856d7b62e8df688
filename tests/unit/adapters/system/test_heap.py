"""Memory that a thread freed is used by others: in a process of its own, for an allocator keeps its first settings."""

import os
import platform
import subprocess
import sys

import pytest

from adapters.system.heap import MAX_ARENAS

_COUNT = """
import ctypes, sys, threading
from adapters.system.heap import bound_arenas
if sys.argv[1] == "bounded":
    bound_arenas()
libc, start = ctypes.CDLL(None), threading.Barrier(16)
libc.malloc.restype = ctypes.c_void_p
def work():
    start.wait()
    libc.malloc(ctypes.c_size_t(5000))
    start.wait()
threads = [threading.Thread(target=work) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.fdopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(None)
"""


def num_arenas(how: str, **variables: str) -> int:
    kept = {name: value for name, value in os.environ.items() if name not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")}
    found = subprocess.run(
        [sys.executable, "-c", _COUNT, how], env=kept | variables, stdout=subprocess.PIPE, text=True, check=True
    )
    return found.stdout.count("<heap nr=")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have no arenas")
def test_threads_share_what_they_freed() -> None:
    assert num_arenas("unbounded") > MAX_ARENAS
    assert num_arenas("bounded") == MAX_ARENAS
    assert num_arenas("bounded", MALLOC_ARENA_MAX="3") == 3, "the environment wins"


_KEEP = """
import ctypes, resource, threading
import sys
from adapters.system.heap import bound_arenas, keep_freed, return_freed, trim_heap
libc, block_bytes, num_blocks = ctypes.CDLL(None), 256 << 10, 400
libc.prctl(41, 1, 0, 0, 0)  # small pages only: PR_SET_THP_DISABLE
libc.malloc.restype = ctypes.c_void_p
def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
def transaction():  # what LMDB does with what it writes, in blocks of its size
    before = faults()
    blocks = [ctypes.c_void_p(libc.malloc(ctypes.c_size_t(block_bytes))) for _ in range(num_blocks)]
    [ctypes.memset(block, 1, block_bytes) for block in blocks]
    [libc.free(block) for block in blocks]
    return faults() - before
def work():
    print(transaction(), transaction(), transaction())
    trim_heap()
    print(transaction())
bound_arenas()
keep_freed()
if "little" in sys.argv:
    return_freed()
thread = threading.Thread(target=work)
thread.start()
thread.join()
work()  # the first thread's heap is of another kind
"""


def num_faults(*arguments: str, **variables: str) -> list[int]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    found = subprocess.run(
        [sys.executable, "-c", _KEEP, *arguments], env=kept | variables, stdout=subprocess.PIPE, text=True, check=True
    )
    return [int(count) for count in found.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep what they see fit")
def test_what_a_transaction_freed_the_next_one_touches_without_a_fault() -> None:
    found = num_faults()
    for first, second, third, trimmed in (found[:4], found[4:]):
        assert second + third < first // 10
        assert trimmed > first // 10, "given back when it was asked for"
    assert min(num_faults(MALLOC_TOP_PAD_="131072")) > found[0] // 10, "the environment wins"
    assert min(num_faults("little")) > found[0] // 10, "with little memory it is returned at once"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep what they see fit")
@pytest.mark.parametrize(("memory", "keeps"), [("300MiB", False), ("50%", True)])
def test_an_engine_with_little_memory_keeps_nothing_freed(memory: str, keeps: bool) -> None:
    made = f"""
from adapters.system import heap
from application.settings import EngineSettings, Settings
from domain.byte_size import ByteSize
from interfaces.composition.backends import mlx_backend
mlx_backend(Settings(engine=EngineSettings(memory=ByteSize.parse({memory!r}))))
print(heap._thresholds[0] == heap._KEEPING)
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    found = subprocess.run([sys.executable, "-c", made], env=kept, stdout=subprocess.PIPE, text=True, check=True)
    assert found.stdout.split()[-1] == str(keeps)


_TRIM = """
import ctypes, resource, threading
from pathlib import Path
from adapters.system.heap import bound_arenas, trim_heap
libc, size = ctypes.CDLL(None), 20 << 20
libc.malloc.restype = ctypes.c_void_p
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
def work():
    libc.free(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size + 4096))))  # such blocks come from the heap from now on
    before = resident()
    for _ in range(2):
        block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size)))
        ctypes.memset(block, 1, size)
        held = resident()
        libc.free(block)
        trim_heap()
        print(held - before, resident() - before)
bound_arenas()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators give back by themselves")
def test_a_thread_gives_back_the_end_of_its_heap_too() -> None:
    names = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    found = subprocess.run([sys.executable, "-c", _TRIM], env=kept, stdout=subprocess.PIPE, text=True, check=True)
    for line in found.stdout.splitlines():
        held, left = map(int, line.split())
        assert left < held // 10
