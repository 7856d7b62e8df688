"""Whether there is an NVIDIA GPU, asked of the system alone: what must be known before MLX is imported."""

from collections.abc import Sequence
from pathlib import Path

_DEVICES = Path("/dev/nvidiactl"), Path("/dev/dxg")
"""Of Linux's driver, and of WSL's."""


def has_nvidia(devices: Sequence[Path] = _DEVICES) -> bool:
    """Whether the driver is there; not whether MLX computes on it."""
    return any(device.exists() for device in devices)


__all__ = ("has_nvidia",)
