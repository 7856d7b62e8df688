"""What a forward pass needs beside its states, by traces of the network's own code: a plane through a few of them.

A pure function of the network's code, its parameters' shapes and `DeviceLimits`; nothing else of the device counts.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeAlias

from adapters.mlx.caches.state_costs import lazy_caches
from adapters.mlx.graph_trace import trace_chunk
from adapters.mlx.run_ahead import GROUPS_ALIVE
from domain.memory.op_trace import RunAhead
from domain.memory.shape import AheadBound, StepCost
from domain.memory.step_fit import fit_points, fit_step
from domain.state_layout import StateLayout

_FEW, _SOME = 4, 8
_LOOP_OPS = 4
"""More operations than this for each further token mean that the network's code goes through them one by one."""
_CPU_LOOP_CHUNKS = (8, 24)
_FAR = 32
"""The plane is laid through the position that is so many chunks away."""
_ONE_BY_ONE = RunAhead(0, 0, 1)

Traced: TypeAlias = tuple[StepCost, AheadBound | None]


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What of the device decides a trace. `name`: as MLX reports it, since mlx-lm and MLX choose kernels by it; `grid`:
    tokens of a chunk; `most_ahead_bytes`: what prefill is held to, None for nothing."""

    name: str
    is_cpu: bool
    grid: int
    ahead: RunAhead
    most_ahead_bytes: int | None


def traced_step(
    network: Any, layout: StateLayout, context_length: int, limits: DeviceLimits
) -> Generator[None, None, Traced]:
    """`context_length`: tokens. Piece by piece, on the thread that computes. Raises whatever a family's code does that
    cannot be traced."""
    pattern, most_bytes = lazy_caches(network, _SOME), limits.most_ahead_bytes
    trace = cache(partial(trace_chunk, network, layout, pattern))
    grid = max(2, min(limits.grid, context_length // 4))
    more_ops = (len(trace(_SOME, _SOME).ops) - len(trace(_FEW, _FEW).ops)) / (_SOME - _FEW)
    has_loops = more_ops > _LOOP_OPS
    pace = _Pace(limits.ahead, grid if has_loops and not limits.is_cpu else None)
    chunks = _chunks_to_trace(grid, has_loops=has_loops, is_cpu=limits.is_cpu)
    # What the widest layer takes bends upwards with the position, so a plane from the first one on lies above it.
    ends = (chunks[1], max(chunks[1], min(_FAR * chunks[1], context_length)))
    peaks: dict[tuple[int, int], int] = {}
    needed, alive = dict(peaks), dict(peaks)
    for chunk, end in fit_points(chunks, ends):
        yield
        found = trace(chunk, end)
        peaks[chunk, end] = found.peak_bytes(pace.of(chunk))
        if most_bytes is not None:
            needed[chunk, end] = found.peak_bytes(_ONE_BY_ONE)
            alive[chunk, end] = found.peak_bytes(pace.of(chunk, GROUPS_ALIVE))
    step = fit_step(peaks, chunks, ends)
    if most_bytes is None:
        return step, None
    most_bytes = max(most_bytes, *(alive[point] - needed[point] for point in alive))
    return step, AheadBound(fit_step(needed, chunks, ends), most_bytes)


def _chunks_to_trace(grid: int, *, has_loops: bool, is_cpu: bool) -> tuple[int, int]:
    """Short enough to trace where a layer goes through its tokens one by one."""
    if not has_loops:
        return max(1, grid // 4), grid
    return _CPU_LOOP_CHUNKS if is_cpu else (_FEW, _SOME)


@dataclass(frozen=True, slots=True)
class _Pace:
    """How far MLX runs ahead of the device while it computes chunks of `grid` tokens that are traced by short ones;
    None: by whole ones.

    On a CPU a few operations wait at once, and short chunks show that. On a GPU more would wait than such a chunk has:
    the share of a chunk that waits is kept instead, so that what waits of a long one comes out about right.
    """

    ahead: RunAhead
    grid: int | None

    def of(self, chunk: int, max_groups: int | None = None) -> RunAhead:
        """With so many groups at once; None: as many as there are."""
        ahead = self.ahead if max_groups is None else replace(self.ahead, max_groups=max_groups)
        if self.grid is None:
            return ahead
        num_ops = ahead.max_groups * ahead.max_ops
        return RunAhead(0, ahead.max_elements, max(1, round(num_ops * chunk / self.grid)))


__all__ = ("DeviceLimits", "Traced", "traced_step")
