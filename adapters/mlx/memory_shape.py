"""What a network needs of memory, from its own code: shapes of its caches and traces of its forward pass.

Nothing is computed and no weight is read, so a network that exists as shapes only does as well as a loaded one, and an
estimate made before loading agrees with the one made after.
"""

import json
import logging
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import mlx.core as mx

from adapters.mlx.arrays import parameters
from adapters.mlx.caches.layout import new_caches
from adapters.mlx.caches.state_costs import lazy_caches, state_costs
from adapters.mlx.device import on_cpu, preferred_grid
from adapters.mlx.graph_trace import trace_chunk
from adapters.mlx.run_ahead import GROUPS_ALIVE, most_ahead_bytes, run_ahead
from domain.memory.config_shape import step_of_config
from domain.memory.op_trace import RunAhead
from domain.memory.shape import AheadBound, MemoryShape, StepCost
from domain.memory.step_fit import fit_points, fit_step
from domain.state_layout import StateLayout

logger = logging.getLogger("cairn.memory")

_FEW, _SOME = 4, 8
_LOOP_OPS = 4
"""More operations than this for each further token mean that the network's code goes through them one by one."""
_CPU_LOOP_CHUNKS = (8, 24)
_FAR = 32
"""The plane is laid through the position that is so many chunks away."""
_MAX_TRACED = 64
_ONE_BY_ONE = RunAhead(0, 0, 1)
_Traced = tuple[StepCost, AheadBound | None]
_traced_steps: dict[tuple[str, int, int, int], _Traced] = {}
"""What was found before in this process, by configuration: a model is loaded more than once."""
_SAMPLING_COPIES = 6
"""float32 copies of a row of logits that choosing a token may hold at once: temperature, sorts and sums of top-p."""


def shape_of_network(
    network: Any, layout: StateLayout, config: Mapping[str, Any], context_length: int
) -> Generator[None, None, MemoryShape]:
    """`context_length`: tokens; estimates go up to there. On the thread that computes, piece by piece: a trace takes
    some milliseconds, and up to a second where a large network goes through its tokens one by one."""
    weight_bytes = sum(array.nbytes for _, array in parameters(network))
    logits = network(mx.zeros((1, 1), dtype=mx.uint32), cache=new_caches(network))
    num_logits, dtype_bytes = int(logits.shape[-1]), int(logits.dtype.size)
    traced = None
    if layout.is_reusable:
        # An adapter changes the weights' size, and the operations; a dtype does neither where all is quantised.
        key = (json.dumps(config, sort_keys=True, default=str), weight_bytes, dtype_bytes, context_length)
        traced = _traced_steps.get(key)
        if traced is None:
            traced = yield from _try_traced(network, layout, context_length)
            _remember(key, traced)
    step, ahead = traced or (step_of_config(config, dtype_bytes), None)
    return MemoryShape(
        weight_bytes=weight_bytes,
        states=state_costs(layout, network),
        step=step,
        logit_bytes=2 * num_logits * dtype_bytes,
        sample_bytes=4 * _SAMPLING_COPIES * num_logits,
        ahead=ahead,
    )


def _remember(key: tuple[str, int, int, int], traced: _Traced | None) -> None:
    if traced is None:
        return
    if len(_traced_steps) >= _MAX_TRACED:
        _traced_steps.clear()
    _traced_steps[key] = traced


def _try_traced(network: Any, layout: StateLayout, context_length: int) -> Generator[None, None, _Traced | None]:
    try:
        return (yield from _traced(network, layout, context_length))
    except Exception as error:  # whatever a family's code does that cannot be traced
        logger.info("the forward pass cannot be traced, its memory is estimated by its config: %s", error)
        return None


def _traced(network: Any, layout: StateLayout, context_length: int) -> Generator[None, None, _Traced]:
    pattern, most_bytes = lazy_caches(network, _SOME), most_ahead_bytes()
    trace = cache(partial(trace_chunk, network, layout, pattern))
    grid = max(2, min(preferred_grid(), context_length // 4))
    more_ops = (len(trace(_SOME, _SOME).ops) - len(trace(_FEW, _FEW).ops)) / (_SOME - _FEW)
    has_loops = more_ops > _LOOP_OPS
    pace = _Pace(run_ahead(), grid if has_loops and not on_cpu() else None)
    chunks = _chunks_to_trace(grid, has_loops=has_loops)
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


def _chunks_to_trace(grid: int, *, has_loops: bool) -> tuple[int, int]:
    """Short enough to trace where a layer goes through its tokens one by one."""
    if not has_loops:
        return max(1, grid // 4), grid
    return _CPU_LOOP_CHUNKS if on_cpu() else (_FEW, _SOME)


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


__all__ = ("shape_of_network",)
