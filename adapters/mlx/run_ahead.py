"""How far MLX hands work to the device before it is done: what is handed over keeps its memory until then.

The limits are MLX's own (`get_graph_limits`, `get_max_ops_mb_per_buffer` and the CPU's `DISPATCHES_PER_TASK` in its
source), and what it calls megabytes are elements. It reads the variables once, when it first uses the device.

On CUDA prefill is held to less, in bytes. After each operation that it hands over, MLX compares what is alive with its
memory limit; above it, it waits for the groups under way, one by one, until it is below it or none is under way. So a
limit that is too low only costs time, and what one operation and the groups that are not waited for take is held
whatever the limit is. The limit counts while operations are handed over and at no other time:

    the graph is built | synchronise | limit = active + state + logits + bound | handed over | limit as before

Nothing of an earlier chunk is alive when the base is read, whatever was computed, restored, loaded or let go of since:
there is nothing to keep count of, and no limit that grows from chunk to chunk. The device has nothing to do from there
until the first group is handed over; the graph is built before. On Metal nothing was measured, and nothing is done. On
a CPU a few operations are all that is under way.
"""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

import mlx.core as mx

from adapters.mlx.device import on_cpu
from domain.memory.op_trace import RunAhead

_OPS_VARIABLE, _ELEMENTS_VARIABLE = "MLX_MAX_OPS_PER_BUFFER", "MLX_MAX_MB_PER_BUFFER"
_NUMBER = re.compile(r"\s*[+-]?\d+", re.ASCII)
_METAL = 50, 50
_CUDA = 100, 1000
"""Operations, and millions of elements, of a group where nobody set another limit. Those of an H100."""

_MOST_AHEAD_BYTES, _AHEAD_SHARE = 2 << 30, 16
"""What prefill runs ahead by on CUDA: 2 GiB cost an H100 nothing; less of a device that has less."""

GROUPS_ALIVE = 2
"""Groups of operations that no limit waits for: one that ends early because of it, and the one after."""


class LimitedMemory(Protocol):
    """MLX's own calls."""

    def synchronize(self) -> None: ...

    def get_active_memory(self) -> int: ...

    def set_memory_limit(self, limit: int, /) -> int:
        """Returns the limit so far."""
        ...


@contextmanager
def held_ahead(most_bytes: int | None, memory: LimitedMemory = mx) -> Generator[None]:
    """Let what is handed over inside keep at most so many bytes alive beyond what is active now, and what MLX does not
    wait for. None: as much as it likes. A limit that is lower already stays. Compute thread only."""
    if most_bytes is None:
        yield
        return
    memory.synchronize()
    limit = memory.get_active_memory() + most_bytes
    before = memory.set_memory_limit(limit)
    try:
        if before < limit:
            memory.set_memory_limit(before)
        yield
    finally:
        memory.set_memory_limit(before)


def most_ahead_bytes() -> int | None:
    """What prefill is held to on this device, where one model's groups are no larger; None where nothing holds it."""
    total = None if on_cpu() or mx.metal.is_available() else mx.device_info().get("total_memory")
    return min(_MOST_AHEAD_BYTES, total // _AHEAD_SHARE) if isinstance(total, int) else None


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


__all__ = ("GROUPS_ALIVE", "LimitedMemory", "held_ahead", "most_ahead_bytes", "run_ahead")
