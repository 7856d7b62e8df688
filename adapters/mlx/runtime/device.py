"""The device that MLX computes on: its kind, the constants that follow from it, and readings of its memory."""

from dataclasses import replace
from typing import Any

import mlx.core as mx

from application.ports.compute import MemoryProbe
from domain.memory.ledger import MemoryReading

CPU_GRID = 512
GPU_GRID = 2048
CPU_LAST_CHUNK = 32
METAL_LAST_CHUNK = 64
CUDA_LAST_CHUNK = 512


def on_cpu() -> bool:
    """True if MLX computes on the CPU."""
    return mx.default_device() == mx.Device(mx.cpu)


def has_cuda() -> bool:
    """True if MLX computes on an NVIDIA GPU, which has memory of its own."""
    cuda: Any = getattr(mx, "cuda", None)
    return cuda is not None and bool(cuda.is_available()) and not on_cpu()


def describe_device() -> str:
    """`cpu`, or the accelerator's name as MLX reports it."""
    if on_cpu():
        return "cpu"
    info = mx.device_info()
    return str(info.get("device_name") or info.get("architecture") or "gpu")


def preferred_grid() -> int:
    """Prefill grid in tokens. 512 measured fastest on CPUs (scores stay in their caches) and 2048 on GPUs."""
    return CPU_GRID if on_cpu() else GPU_GRID


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
    """Bytes of freed memory that MLX may keep: a sixteenth of a CUDA device's memory, where returning it and asking
    again costs a tenth of the prefill rate; 0 elsewhere, where memory is shared with the system."""
    total = mx.device_info().get("total_memory")
    return total // 16 if isinstance(total, int) else 0


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
    it. An allocation beyond it aborts the process. CUDA: the device's memory, as far as no other process holds it.
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
            total = _count(info.get("max_recommended_working_set_size"))
            host = self._host.read()
            return MemoryReading(total, host.available_bytes, max(held, host.held_bytes or 0), cached)
        return MemoryReading(_count(info.get("total_memory")), _count(info.get("free_memory")), held, cached)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
