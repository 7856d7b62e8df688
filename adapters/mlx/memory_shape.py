"""What a network needs of memory, from its own code: shapes of its caches and traces of its forward pass.

Nothing is computed and no weight is read, so a network that exists as shapes only does as well as a loaded one, and an
estimate made before loading agrees with the one made after. What was traced is remembered in this process, and from one
start to the next (`TraceMemory`): tracing a large network takes seconds.
"""

import logging
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from typing import Any

import mlx.core as mx

from adapters.mlx.arrays import parameters
from adapters.mlx.caches.layout import new_caches
from adapters.mlx.caches.short_queries import cost_of, noting
from adapters.mlx.caches.state_costs import state_costs
from adapters.mlx.device import describe_device, on_cpu, preferred_grid
from adapters.mlx.run_ahead import most_ahead_bytes, run_ahead
from adapters.mlx.step_trace import DeviceLimits, Traced, traced_step
from adapters.mlx.trace_key import trace_key
from adapters.mlx.trace_memory import TraceMemory
from domain.memory.config_shape import step_of_config
from domain.memory.shape import MemoryShape
from domain.state_layout import StateLayout

logger = logging.getLogger("cairn.memory")

_MAX_TRACED = 64
_traced_steps: dict[str, Traced] = {}
"""What was found before in this process: a model is loaded more than once."""
_SAMPLING_COPIES = 6
"""float32 copies of a row of logits that choosing a token may hold at once: temperature, sorts and sums of top-p."""


def shape_of_network(
    network: Any,
    layout: StateLayout,
    config: Mapping[str, Any],
    context_length: int,
    traces: TraceMemory | None = None,
) -> Generator[Future[Any] | None, None, MemoryShape]:
    """`context_length`: tokens; estimates go up to there. `traces`: what earlier starts found; None for nothing. On the
    thread that computes, piece by piece: a trace takes some milliseconds, and up to a second where a large network goes
    through its tokens one by one."""
    weight_bytes = sum(array.nbytes for _, array in parameters(network))
    with noting() as noted:
        logits = network(mx.zeros((1, 1), dtype=mx.uint32), cache=new_caches(network))
    num_logits, dtype_bytes = int(logits.shape[-1]), int(logits.dtype.size)
    traced = None
    if layout.is_reusable:
        limits = DeviceLimits(describe_device(), on_cpu(), preferred_grid(), run_ahead(), most_ahead_bytes())
        key = trace_key(network, layout, config, context_length, limits)
        traced = _traced_steps.get(key) or (yield from _find_out(key, network, layout, context_length, limits, traces))
    step, ahead = traced or (step_of_config(config, dtype_bytes), None)
    return MemoryShape(
        weight_bytes=weight_bytes,
        states=state_costs(layout, network),
        step=step,
        logit_bytes=2 * num_logits * dtype_bytes,
        sample_bytes=4 * _SAMPLING_COPIES * num_logits,
        ahead=ahead,
        scores=cost_of(noted),
    )


def _find_out(
    key: str,
    network: Any,
    layout: StateLayout,
    context_length: int,
    limits: DeviceLimits,
    traces: TraceMemory | None,
) -> Generator[Future[Any] | None, None, Traced | None]:
    """By what an earlier start found, or else by tracing. None where that cannot be done, which nobody remembers."""
    known = None if traces is None else (yield from traces.recall(key))
    found = known or (yield from _try_traced(network, layout, context_length, limits))
    if found is not None:
        if len(_traced_steps) >= _MAX_TRACED:
            _traced_steps.clear()
        _traced_steps[key] = found
        if traces is not None and known is None:
            traces.remember(key, found)
    return found


def _try_traced(
    network: Any, layout: StateLayout, context_length: int, limits: DeviceLimits
) -> Generator[None, None, Traced | None]:
    try:
        return (yield from traced_step(network, layout, context_length, limits))
    except Exception as error:  # whatever a family's code does that cannot be traced
        logger.info("the forward pass cannot be traced, its memory is estimated by its config: %s", error)
        return None


__all__ = ("shape_of_network",)
