"""What a toy model needs of memory: exactly what its leaves hold, and nothing beyond."""

from adapters.fake.options import FakeOptions
from domain.memory.shape import MemoryShape, StateCost
from domain.models.model_card import LoadOptions, ModelSource
from domain.models.state_layout import HitPolicy, StateGroup
from domain.scheduling.memory_plan import PlannedModel

_WORD_BYTES = 8
_RECURRENT_WORDS = 4


def memory_shape(options: FakeOptions) -> MemoryShape:
    return MemoryShape(weight_bytes=options.weight_bytes, states=tuple(_cost(group) for group in options.layout.groups))


def plan_toy(_source: ModelSource, _options: LoadOptions) -> PlannedModel:
    """A ModelPlanner: the toy that any name stands for."""
    options = FakeOptions()
    return PlannedModel("fake", options.context_length, options.layout, memory_shape(options))


def _cost(group: StateGroup) -> StateCost:
    count = len(group.leaves)
    if group.policy is HitPolicy.SNAPSHOT:
        return StateCost(0, fixed_bytes=count * _RECURRENT_WORDS * _WORD_BYTES, step=1)
    return StateCost(count * _WORD_BYTES, group.window, step=1)
