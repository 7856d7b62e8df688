"""How far MLX hands work to the device before it is done: what is handed over keeps its memory until then.

The limits are MLX's own (`get_graph_limits`, `get_max_ops_mb_per_buffer` and the CPU's `DISPATCHES_PER_TASK` in its
source), and what it calls megabytes are elements. It reads the variables once, when it first uses the device.
"""

import os
import re

import mlx.core as mx

from adapters.mlx.device import on_cpu
from domain.memory.op_trace import RunAhead

_OPS_VARIABLE, _ELEMENTS_VARIABLE = "MLX_MAX_OPS_PER_BUFFER", "MLX_MAX_MB_PER_BUFFER"
_NUMBER = re.compile(r"\s*[+-]?\d+", re.ASCII)
_METAL = 50, 50
_CUDA = 100, 1000
"""Operations, and millions of elements, of a group where nobody set another limit. Those of an H100."""


def run_ahead() -> RunAhead:
    """Of this device, with the limits that are set."""
    if on_cpu():
        return RunAhead(5, 1 << 60)
    ops, elements = _METAL if mx.metal.is_available() else _CUDA
    return RunAhead(_number(_OPS_VARIABLE, ops), _number(_ELEMENTS_VARIABLE, elements) << 20)


def _number(variable: str, default: int) -> int:
    """As MLX reads it, by C's atoi: what is no number is 0 to it, and then every operation is a group."""
    value = os.environ.get(variable)
    if value is None:
        return default
    number = _NUMBER.match(value)
    return max(0, int(number[0])) if number is not None else 0


__all__ = ("run_ahead",)
