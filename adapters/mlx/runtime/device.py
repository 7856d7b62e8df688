"""The device that MLX computes on, and the constants that follow from it."""

from typing import Any

import mlx.core as mx

CPU_GRID = 512
GPU_GRID = 2048
CPU_LAST_CHUNK = 32
METAL_LAST_CHUNK = 64
CUDA_LAST_CHUNK = 512


def on_cpu() -> bool:
    """Whether MLX computes on the CPU."""
    return mx.default_device() == mx.Device(mx.cpu)


def has_cuda() -> bool:
    """Whether MLX computes on an NVIDIA GPU, with memory of its own."""
    cuda: Any = getattr(mx, "cuda", None)
    return cuda is not None and bool(cuda.is_available()) and not on_cpu()


def describe_device() -> str:
    """`cpu`, or the accelerator's name as MLX reports it."""
    if on_cpu():
        return "cpu"
    info = mx.device_info()
    return str(info.get("device_name") or info.get("architecture") or "gpu")


def preferred_grid() -> int:
    """Prefill grid in tokens: measured fastest at 512 on CPUs (scores stay in cache) and 2048 on GPUs."""
    return CPU_GRID if describe_device() == "cpu" else GPU_GRID


def preferred_last_chunk() -> int:
    """Up to how many tokens the end of a prompt is better computed with its last token than without it.

    Logits cost every token of a pass the output matrix and most of the last layer, which prefill spares; a pass of its
    own costs the last token all weights once more, and all of the state that it attends to. Without a state both sides
    cost the same at about 40 tokens on a CPU (8 layers) and at 600 and more on an H200 (models of 4B and 8B), where up
    to 256 one pass takes 4 to 5 ms less of 11 to 34. Behind 78,000 tokens a pass of one token takes 16 ms on an H100
    (4B), so that the next turn of a conversation, some hundred tokens, had better be one pass. Metal was not measured:
    with prefill 10 to 20 times as fast as decode, 64 is well on the safe side.
    """
    if on_cpu():
        return CPU_LAST_CHUNK
    return METAL_LAST_CHUNK if mx.metal.is_available() else CUDA_LAST_CHUNK


def spare_bytes() -> int:
    """Freed memory to keep: giving it back and asking again costs a fast GPU a tenth of its prefill.

    A sixteenth of a CUDA device's memory; 0 elsewhere, where memory is the system's too and chunks take seconds.
    """
    total = mx.device_info().get("total_memory")
    return total // 16 if isinstance(total, int) else 0


def most_ahead_bytes() -> int:
    """Temporaries of other layers that a device may hold beside those of the one it computes: MLX hands over ten groups
    of operations before it waits. A bound for models of which nothing was measured; a CPU computes one at a time."""
    if on_cpu():
        return 0
    return 1 << 30 if mx.metal.is_available() else 16 << 30
