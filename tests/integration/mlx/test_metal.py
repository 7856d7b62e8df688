"""Metal differs by nature: a working-set limit, memory shared with the host, allocations that are refused.

These tests run where MLX has Metal (the `macos` workflow) and were written without one: a first failure may be theirs.
"""

import subprocess
import sys

import mlx.core as mx
import pytest

from adapters.mlx.runtime.device import MlxMemory
from adapters.system.machine import SystemMemory
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(not mx.metal.is_available(), reason="MLX has no Metal here")

MIB = 1 << 20


def test_the_limit_is_the_recommended_working_set():
    with mx.stream(mx.gpu):
        reading = MlxMemory(SystemMemory()).read()
    assert reading.total_bytes == mx.device_info()["max_recommended_working_set_size"]


def test_held_memory_counts_arrays_and_freed_buffers_that_mlx_keeps():
    probe = MlxMemory(SystemMemory())
    mx.eval(mx.zeros((MIB,), mx.uint8))  # the first operation loads Metal's library, which the footprint counts
    before = probe.read().held_bytes or 0
    array = mx.zeros((64 * MIB,), mx.uint8)
    mx.eval(array)
    assert (probe.read().held_bytes or 0) >= before + 64 * MIB
    del array
    kept = probe.read()
    assert (kept.held_bytes or 0) - kept.cached_bytes <= before + 16 * MIB  # whatever else it allocates


def test_an_array_is_read_where_it_lies():
    """Unified memory: a captured payload needs no copy to be read by the store's threads."""
    array = mx.arange(1024, dtype=mx.uint32)
    mx.eval(array)
    assert memoryview(array)[1023] == 1023


def test_an_allocation_beyond_the_largest_buffer_ends_or_fails_a_process_and_not_this_one():
    """MLX raises where Metal refuses a buffer; what a driver does before is not known, so it is tried in a child."""
    code = "import mlx.core as mx; mx.eval(mx.zeros((mx.device_info()['max_buffer_length'] + 1,), mx.uint8))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode != 0
