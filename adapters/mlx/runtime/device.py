"""The device that MLX computes on: its kind, the constants that follow from it, and readings of its memory."""

import re
from dataclasses import replace
from typing import Any

import mlx.core as mx

from application.ports.compute import MemoryProbe
from domain.chunking import GRIDS
from domain.memory.ledger import MemoryReading

M5_GENERATION = 17
CPU_GRID = 512
GPU_GRID = 2048
CPU_LAST_CHUNK = 32
METAL_LAST_CHUNK = 64
CUDA_LAST_CHUNK = 512
MOST_METAL_SPARE = 2 << 30


def on_cpu() -> bool:
    """True if MLX computes on the CPU."""
    return mx.default_device() == mx.Device(mx.cpu)


def has_cuda() -> bool:
    """True if MLX computes on an NVIDIA GPU, which has memory of its own."""
    cuda: Any = getattr(mx, "cuda", None)
    return cuda is not None and bool(cuda.is_available()) and not on_cpu()


def has_metal() -> bool:
    """True if MLX computes on an Apple GPU: it shares the host's memory, draws the screen as well, and ends work that
    takes too long."""
    return mx.metal.is_available() and not on_cpu()


def describe_device() -> str:
    """`cpu`, or the accelerator's name as MLX reports it."""
    if on_cpu():
        return "cpu"
    info = mx.device_info()
    return str(info.get("device_name") or info.get("architecture") or "gpu")


def preferred_grid() -> int:
    """Prefill grid in tokens. 512 measured fastest on CPUs (scores stay in their caches) and 2048 on GPUs; on Metal it
    is the largest, of which a load may choose less (see `loading/grid`)."""
    return CPU_GRID if on_cpu() else GPU_GRID


def least_grid() -> int:
    """The smallest grid on Metal: 1024 from M5 on, whose attention kernel for wide heads needs as many queries. Its
    generation is the number in the architecture, by which MLX itself chooses kernels: `applegpu_g17s`."""
    found = re.match(r"applegpu_g(\d+)", str(mx.device_info().get("architecture", "")))
    return 1024 if found and int(found[1]) >= M5_GENERATION else GRIDS[0]


def preferred_last_chunk() -> int:
    """The length in tokens up to which the end of a prompt is computed in one pass with its last token.

    That pass computes the output matrix and most of the last layer for each of its tokens, which prefill omits. A
    separate pass for the last token reads all weights, and all of the state that it attends to, once more. The two cost
    the same at about 40 tokens on a CPU (8 layers) and at 600 and more on an H200 (models of 4B and 8B). Metal was not
    measured: prefill is 10 to 20 times as fast as decode there, so 64 is a safe choice.
    """
    if on_cpu():
        return CPU_LAST_CHUNK
    return METAL_LAST_CHUNK if mx.metal.is_available() else CUDA_LAST_CHUNK


def spare_bytes() -> int:
    """Bytes of freed memory that MLX may keep: a sixteenth of a GPU's memory, because returning it and asking again
    costs a tenth of the prefill rate (measured on CUDA); at most MOST_METAL_SPARE of what Metal shares with the system;
    0 on a CPU."""
    if has_metal():
        return min((working_set_bytes() or 0) // 16, MOST_METAL_SPARE)
    total = mx.device_info().get("total_memory")
    return total // 16 if isinstance(total, int) else 0


def working_set_bytes() -> int | None:
    """The memory that Metal recommends to use at most; None elsewhere."""
    return _count(mx.device_info().get("max_recommended_working_set_size")) if has_metal() else None


def most_ahead_bytes() -> int:
    """A bound on the temporaries that a device holds for operations queued behind the one it computes, for models that
    were not measured. MLX queues ten groups of operations on a GPU; a CPU computes one operation at a time."""
    if on_cpu():
        return 0
    return 1 << 30 if mx.metal.is_available() else 16 << 30


class MlxMemory:
    """A MemoryProbe of the memory that MLX computes in.

    CPU: the host's memory, of which MLX's freed buffers are known. Metal: the recommended working set, shared with the
    host, whose kernel ends a process by its footprint: this counts where it is more than MLX's buffers, which are in
    it. Beyond it a pass fails, and the engine ends. CUDA: the device's memory, as far as no other process holds it.
    """

    def __init__(self, host: MemoryProbe) -> None:
        """`host`: reads the memory of the machine or the container."""
        self._host = host

    def read(self) -> MemoryReading:
        cached = mx.get_cache_memory()
        if on_cpu():
            found = self._host.read()
            return replace(found, cached_bytes=min(cached, found.held_bytes or 0))
        held, info = mx.get_active_memory() + cached, mx.device_info()
        if mx.metal.is_available():
            host = self._host.read()
            return MemoryReading(working_set_bytes(), host.available_bytes, max(held, host.held_bytes or 0), cached)
        return MemoryReading(_count(info.get("total_memory")), _count(info.get("free_memory")), held, cached)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
