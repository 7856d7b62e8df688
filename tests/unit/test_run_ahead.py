"""Estimates go by the limits that MLX goes by, wherever those come from."""

import mlx.core as mx
import pytest

from adapters.mlx import run_ahead
from domain.memory.op_trace import RunAhead


@pytest.mark.parametrize(
    ("ops", "elements", "expected"),
    [
        (None, None, RunAhead(100, 1000 << 20)),
        ("20", None, RunAhead(20, 1000 << 20)),
        (None, "400", RunAhead(100, 400 << 20)),
        ("0", "many", RunAhead(0, 0)),
        ("+-5", "²", RunAhead(0, 0)),
        (" +7 and more", "-3", RunAhead(7, 0)),
    ],
)
def test_what_is_set_counts(
    ops: str | None, elements: str | None, expected: RunAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device of CUDA's, as far as this can tell."""
    monkeypatch.setattr(run_ahead, "on_cpu", lambda: False)
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    for name, value in (("MLX_MAX_OPS_PER_BUFFER", ops), ("MLX_MAX_MB_PER_BUFFER", elements)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert run_ahead.run_ahead() == expected
