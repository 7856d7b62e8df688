"""Whether MLX will find an NVIDIA GPU here, without importing it: its CUDA build is installed, and there is a device.

Wrong either way costs little: it only decides where the engine runs when nobody says so.
"""

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_BUILDS = ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda")
_DEVICES = ("nvidiactl", "dxg")  # Linux, and Linux below Windows
_HIDDEN = ("", "-1", "NoDevFiles")


def has_cuda(devices: Path = Path("/dev"), environment: Mapping[str, str] = os.environ) -> bool:
    if environment.get("CUDA_VISIBLE_DEVICES", "all") in _HIDDEN:
        return False
    return any((devices / name).exists() for name in _DEVICES) and any(map(_is_installed, _BUILDS))


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


__all__ = ("has_cuda",)
