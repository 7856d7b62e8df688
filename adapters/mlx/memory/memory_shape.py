"""Memory that a network needs: shapes of its weights and caches, and its configuration's formula for a step.

Nothing is computed and no weight is read, so a network that exists as shapes only does as well as a loaded one.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from adapters.mlx.caches.layout import new_caches
from adapters.mlx.caches.state_costs import state_costs
from adapters.mlx.runtime.arrays import parameters
from adapters.mlx.runtime.device import most_ahead_bytes, preferred_grid
from domain.memory.config_shape import step_of_config
from domain.memory.shape import MemoryShape
from domain.models.state_layout import StateLayout

_SAMPLING_COPIES = 6
"""float32 copies of a row of logits that choosing a token may hold at once: temperature, sorts and sums of top-p."""


def shape_of_network(network: Any, layout: StateLayout, config: Mapping[str, Any]) -> MemoryShape:
    """Before anything was measured. On the thread that computes."""
    logits = network(mx.zeros((1, 1), dtype=mx.uint32), cache=new_caches(network))
    num_logits, dtype_bytes = int(logits.shape[-1]), int(logits.dtype.size)
    return MemoryShape(
        weight_bytes=sum(array.nbytes for _, array in parameters(network)),
        states=state_costs(layout, network),
        step=step_of_config(config, dtype_bytes, preferred_grid(), most_ahead_bytes()),
        logit_bytes=2 * num_logits * dtype_bytes,
        sample_bytes=4 * _SAMPLING_COPIES * num_logits,
    )
