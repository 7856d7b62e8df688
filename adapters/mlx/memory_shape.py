"""What a network needs of memory, from its own code: shapes of its caches and traces of its forward pass.

Nothing is computed and no weight is read, so a network that exists as shapes only does as well as a loaded one, and an
estimate made before loading agrees with the one made after.
"""

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import mlx.core as mx

from adapters.mlx.arrays import parameters
from adapters.mlx.caches.layout import new_caches
from adapters.mlx.device import on_cpu, preferred_grid
from adapters.mlx.graph_trace import trace_chunk
from adapters.mlx.state_costs import lazy_caches, state_costs
from domain.memory.config_shape import step_of_config
from domain.memory.op_trace import RunAhead
from domain.memory.shape import MemoryShape, StepCost
from domain.memory.step_fit import fit_step
from domain.state_layout import StateLayout

logger = logging.getLogger("cairn.memory")

_FEW, _SOME = 8, 16
_LOOP_OPS = 4
"""More operations than this for each further token mean that the network's code goes through them one by one."""
_LOOP_CHUNKS = (16, 48)
_FAR = 32
"""The plane is laid through the position that is so many chunks away."""
_MAX_TRACED = 64
_traced_steps: dict[tuple[str, int, int, int], StepCost] = {}
"""What was found before in this process, by configuration: a model is loaded more than once."""
_SAMPLING_COPIES = 6
"""float32 copies of a row of logits that choosing a token may hold at once: temperature, sorts and sums of top-p."""


def shape_of_network(network: Any, layout: StateLayout, config: Mapping[str, Any], context_length: int) -> MemoryShape:
    """`context_length`: tokens; estimates go up to there. The thread that computes; takes some tens of milliseconds."""
    weights = parameters(network)
    logits = network(mx.zeros((1, 1), dtype=mx.uint32), cache=new_caches(network))
    num_logits, dtype_bytes = int(logits.shape[-1]), int(logits.dtype.size)
    return MemoryShape(
        weight_bytes=sum(array.nbytes for _, array in weights),
        states=state_costs(layout, network),
        step=_step(network, layout, config, context_length, dtype_bytes),
        logit_bytes=2 * num_logits * dtype_bytes,
        sample_bytes=4 * _SAMPLING_COPIES * num_logits,
    )


def run_ahead() -> RunAhead:
    """How far MLX hands work to this device before it is done (`get_graph_limits`, `get_max_ops_mb_per_buffer` and
    the CPU's `DISPATCHES_PER_TASK` in MLX's source). What it calls megabytes are elements."""
    if on_cpu():
        return RunAhead(5, 1 << 60)
    return RunAhead(50, 50 << 20) if mx.metal.is_available() else RunAhead(100, 1000 << 20)


def _step(
    network: Any, layout: StateLayout, config: Mapping[str, Any], context_length: int, dtype_bytes: int
) -> StepCost:
    if layout.is_reusable:
        key = (json.dumps(config, sort_keys=True, default=str), dtype_bytes, context_length, preferred_grid())
        try:
            if key not in _traced_steps:
                step = _traced(network, layout, context_length)
                if len(_traced_steps) >= _MAX_TRACED:
                    _traced_steps.clear()
                _traced_steps[key] = step
            return _traced_steps[key]
        except Exception as error:  # whatever a family's code does that cannot be traced
            logger.debug("the forward pass cannot be traced, its memory is estimated by its config: %s", error)
    return step_of_config(config, dtype_bytes)


def _traced(network: Any, layout: StateLayout, context_length: int) -> StepCost:
    pattern = lazy_caches(network, _SOME)
    trace = partial(trace_chunk, network, layout, pattern)
    num_ops = [len(trace(count, count).ops) for count in (_FEW, _SOME)]
    if num_ops[1] - num_ops[0] > _LOOP_OPS * (_SOME - _FEW):
        chunks = _LOOP_CHUNKS
    else:
        largest = max(2, min(preferred_grid(), context_length // 4))
        chunks = (max(1, largest // 4), largest)
    # What the widest layer takes bends upwards with the position, so a plane from the first one on lies above it.
    ends = (chunks[1], max(chunks[1], min(_FAR * chunks[1], context_length)))
    ahead = run_ahead()
    return fit_step(lambda chunk, end: trace(chunk, end).peak_bytes(ahead), chunks, ends)


__all__ = ("run_ahead", "shape_of_network")
