"""What fits, by the same sums as the guard's."""

from dataclasses import replace

import pytest

from domain.memory.ledger import MemoryLimits
from domain.memory.needs import Load
from domain.memory.preflight import Preflight
from domain.memory.shape import MemoryShape, StateCost, StepCost
from domain.models.model_card import ContextLength
from domain.models.state_layout import StateLayout
from domain.scheduling.memory_plan import MemoryPlan, PlannedModel
from interfaces.cli.commands.plan import as_data, as_lines

SHAPE = MemoryShape(
    weight_bytes=10_000,
    states=(StateCost(10, step=1), StateCost(4, window=100, step=1), StateCost(0, fixed_bytes=500, step=1)),
    step=StepCost(base_bytes=50, token_bytes=8, pair_bytes=1),
    logit_bytes=3,
    sample_bytes=2,
)
PLAN = MemoryPlan(shape=SHAPE, context=1_000, batch=3, chunk=64, limits=MemoryLimits.of(200_000))


def test_what_is_needed_is_weights_states_and_one_step():
    alone = replace(PLAN, batch=1)
    grown = SHAPE.state_bytes(1_000, 64) - SHAPE.state_bytes(936, 64)
    least = 10_000 + alone.sequence_bytes + alone.prefill_bytes
    assert least <= alone.needed_bytes <= least + 3 * (grown + 500)
    assert PLAN.needed_bytes > alone.needed_bytes + 2 * SHAPE.state_bytes(1_000) - 1


@pytest.mark.parametrize("total", range(20_000, 120_000, 5_000))
def test_a_plan_of_one_sequence_fits_where_preflight_lets_it_pass(total: int):
    limits = MemoryLimits.of(total)
    flight = Preflight(SHAPE, limits.hard_bytes, SHAPE.weight_bytes)
    assert replace(PLAN, batch=1, limits=limits).fits == flight.fits(Load(1_000, chunk=PLAN.chunk))


def test_the_longest_context_fits_and_one_token_more_does_not():
    longest = PLAN.longest(100_000)
    assert 0 < longest < 100_000
    assert replace(PLAN, context=longest).fits
    assert not replace(PLAN, context=longest + 1).fits


def test_the_largest_batch_fits_and_one_sequence_more_does_not():
    most = PLAN.most_sequences()
    assert replace(PLAN, batch=most).fits
    assert not replace(PLAN, batch=most + 1).fits


def test_both_shapes_of_the_answer_say_the_same():
    model = PlannedModel("llama", ContextLength(4_096, "config.json"), StateLayout(()), SHAPE, has_weights=False)
    data, lines = as_data("m", model, PLAN), dict(as_lines(model, PLAN))
    assert (data["needed_bytes"], data["fits"], data["weights_from"]) == (PLAN.needed_bytes, True, "config")
    assert [state["window"] for state in data["states"]] == [None, 100, None]
    assert lines["state of a token, the last 100"] == "4 B"
    assert lines["longest context, 3 at once"].startswith(str(data["largest_context"]))
    assert lines["most at once, 1000 tokens"] == f"{data['largest_batch']} sequences"


def test_what_does_not_fit_says_by_how_much_and_what_experts_take():
    narrow = replace(PLAN, limits=MemoryLimits(*[PLAN.needed_bytes - 1024] * 4))
    model = PlannedModel("llama", ContextLength(4_096, "config.json"), StateLayout(()), SHAPE, expert_bytes=512)
    lines = dict(as_lines(model, narrow))
    assert lines["may be held"].endswith("it does not fit, by 1 KiB")
    assert lines["weights"].endswith(", 512 B of it experts")
    assert as_data("m", model, narrow)["expert_bytes"] == 512


def test_without_limits_everything_fits_and_nothing_is_said_to():
    free = replace(PLAN, limits=None)
    model = PlannedModel("llama", ContextLength(4_096, "config.json"), StateLayout(()), SHAPE)
    assert free.fits
    assert as_data("m", model, free)["largest_batch"] is None
    assert list(as_lines(model, free))[-1][0] == "memory"
