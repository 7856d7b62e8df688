"""The CPU dressed as Metal: MLX reports an Apple GPU, and computes on its CPU stream as before."""

from collections import Counter
from typing import Any

import mlx.core as mx
import pytest

GIB = 1 << 30
M1 = {
    "architecture": "applegpu_g13g",
    "device_name": "Apple M1",
    "max_buffer_length": 8 * GIB,
    "max_recommended_working_set_size": 11 * GIB,
    "memory_size": 16 * GIB,
}
"""The figures of an M1 with 16 GB."""


class DressedMetal:
    """Counts calls of MLX that Metal minds. `limits`: the calls that set one, with its size."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **info: object) -> None:
        """`info`: the device's answers that differ from an M1's."""
        self.calls = Counter[str]()
        self.limits = list[tuple[str, int]]()
        clear = mx.clear_cache

        def counted() -> None:
            self.calls["clear_cache"] += 1
            clear()

        def limit(name: str) -> Any:
            return lambda size: self.limits.append((name, size))

        told = {**M1, **info}
        monkeypatch.setattr(mx.metal, "is_available", lambda: True)
        monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
        monkeypatch.setattr(mx, "device_info", lambda: told)
        monkeypatch.setattr(mx, "clear_cache", counted)
        for name in ("set_wired_limit", "set_cache_limit"):
            monkeypatch.setattr(mx, name, limit(name))
