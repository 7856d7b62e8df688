"""Readings of the memory that MLX computes in: host memory on a CPU, the working set on Metal, device memory on CUDA.

On a CPU everything the process holds counts, and MLX's part of it is only what freed buffers it keeps. On Metal the
host's memory is the device's too, and MLX may hold what the system recommends; beyond that the process is aborted. CUDA
reports what is free for anybody: other processes and the driver's own part show there and nowhere else. MLX allocates
managed memory on old devices only; either way what it holds is what it says it does.
"""

from dataclasses import replace

import mlx.core as mx

from adapters.mlx.runtime.device import on_cpu
from application.ports.memory_probe import MemoryProbe
from domain.memory.ledger import MemoryReading


class MlxMemory:
    """A MemoryProbe. `host`: reads the memory of the machine or the container."""

    def __init__(self, host: MemoryProbe) -> None:
        self._host = host

    def read(self) -> MemoryReading:
        cached = mx.get_cache_memory()
        if on_cpu():
            found = self._host.read()
            return replace(found, cached_bytes=min(cached, found.held_bytes or 0))
        held, info = mx.get_active_memory() + cached, mx.device_info()
        if mx.metal.is_available():
            # What others leave of shared memory is the host's to know.
            total = _count(info.get("max_recommended_working_set_size"))
            return MemoryReading(total, self._host.read().available_bytes, held, cached)
        return MemoryReading(_count(info.get("total_memory")), _count(info.get("free_memory")), held, cached)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
