"""What decides a trace of a forward pass, as short names: equal ones mean that tracing again would find the same.

In two parts. `trace_key` is of one network on this device; `code_key` of what runs, the same for as long as the process
lives: the sources themselves, so that nobody has to remember to raise a number, and the versions of what has none.
"""

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import domain.memory
from adapters.mlx.arrays import parameters
from adapters.mlx.file_limit import mlx_lm_module
from adapters.mlx.step_trace import DeviceLimits
from domain.state_layout import StateLayout

_PACKAGES = (
    *("mlx", "mlx-lm", "mlx-metal", "mlx-cpu", "mlx-cuda-12", "mlx-cuda-13"),
    *("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),  # decides whether CUDA's attention is fused
)


def trace_key(
    network: Any, layout: StateLayout, config: Mapping[str, Any], context_length: int, limits: DeviceLimits
) -> str:
    """Of one network, by its configuration and the shapes of all its parameters: an adapter or a quantisation changes
    operations, and may do so at the same size. Nothing is computed. Compute thread only."""
    shapes = [(name, str(array.dtype), *array.shape) for name, array in parameters(network)]
    return _digest(config, shapes, layout.describe(), context_length, astuple(limits))


@cache
def code_key() -> str:
    """Of what traces, what is traced, and what may set limits. Reads some 200 small files, once. Raises OSError."""
    versions = {name: _version(name) for name in _PACKAGES}
    variables = {name: value for name, value in os.environ.items() if name.startswith("MLX_")}
    folders = (Path(__file__).parent, *map(Path, (*domain.memory.__path__, *mlx_lm_module("models").__path__)))
    sources = [(name, sha256(source).hexdigest()) for folder in folders for name, source in _sources(folder)]
    return _digest(versions, variables, sys.version, sys.platform, platform.machine(), sources)


def _sources(folder: Path) -> Iterator[tuple[str, bytes]]:
    found = sorted(folder.rglob("*.py"))
    if not found:
        raise FileNotFoundError(f"{folder} has no sources")
    for path in found:
        yield path.relative_to(folder).as_posix(), path.read_bytes()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _digest(*parts: object) -> str:
    return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


__all__ = ("code_key", "trace_key")
