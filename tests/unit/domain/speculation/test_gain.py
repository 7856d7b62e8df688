"""Costs by rows and width, the depth that they advise, and what follows observations."""

from math import inf, nan

import pytest

from domain.speculation.gain import OWN_PRIOR, WIDTHS, DepthControl, WidthCosts, observed

ONE, FOUR = (9.4, 12.1, 14.0, 14.5, 17.8, 22.3), (14.2, 21.8, 24.2, 26.3, 41.8, 72.9)
CPU = WidthCosts.measured([ONE, FOUR])
HYBRID = WidthCosts.measured([ONE, FOUR], refeeds=True)
UNPLANNED_CUDA = WidthCosts.measured([(8.6, 88.0, 92.0, 90.0, 74.0, 86.0)] * 2)
STEADY = WidthCosts.measured([[10.0 + width for width in WIDTHS]] * 2)


def depth(costs: WidthCosts, accepted: float, most: int = 16, *, rows: int = 1, is_own: bool = False) -> int:
    control = DepthControl(costs)
    control.own_acceptance = accepted if is_own else 0.5
    return control.depth(rows, most, None if is_own else accepted)


def test_another_width_costs_what_the_next_larger_measured_one_does():
    assert [CPU.cost(1, width) for width in (1, 3, 4, 5, 17)] == [9.4, 14.0, 14.5, 14.5, 22.3]
    assert [CPU.cost(rows, 2) for rows in (2, 3, 4)] == [21.8] * 3


def test_noise_is_corrected_in_favour_of_plain_decoding():
    assert WidthCosts.measured([(20.0, 12.0, 15.0, 18.0, 30.0, 40.0), ONE]).pass_ms[0][:3] == (12.0, 12.0, 15.0)
    assert UNPLANNED_CUDA.pass_ms == ((8.6, 88.0, 92.0, 92.0, 92.0, 92.0),) * 2


@pytest.mark.parametrize(
    "pass_ms",
    [
        [],
        [ONE],
        [ONE] * 3,
        [ONE, ONE[1:]],
        [ONE, (*ONE, 30.0)],
        *([ONE, (*FOUR[:-1], cost)] for cost in (0.0, nan, inf)),
    ],
)
def test_measurements_that_are_no_table_of_positive_costs_are_refused(pass_ms: list[list[float]]):
    with pytest.raises(ValueError, match="must"):
        WidthCosts.measured(pass_ms)


def test_where_text_is_copied_a_cpu_drafts_far_and_an_unplanned_gpu_never():
    assert depth(CPU, 0.95) == 16
    assert depth(CPU, 0.6) in range(2, 8)
    assert depth(CPU, 0.2) == 0
    assert depth(UNPLANNED_CUDA, 0.9) == 0
    assert depth(CPU, 0.95, most=3) == 3
    assert depth(CPU, 0.95, most=0) == 0


def test_a_group_drafts_as_far_as_its_rows_are_accepted_together():
    assert depth(CPU, 0.97**4, rows=4) > 0
    assert depth(CPU, 0.97**3 * 0.3, rows=4) == 0


def test_drafting_by_the_model_and_feeding_again_are_part_of_the_cost():
    dear = WidthCosts.measured([ONE, FOUR], draft_ms=8.0)
    assert depth(CPU, 0.6, is_own=True) > 0
    assert depth(dear, 0.6, is_own=True) == 0
    assert depth(dear, 0.6) > 0
    assert depth(HYBRID, 0.6) == 0
    assert depth(HYBRID, 0.95) > 0


def test_an_estimate_follows_the_text_within_some_tokens():
    estimate = OWN_PRIOR
    for _ in range(18):
        estimate = observed(estimate, num_proposed=3, num_accepted=0)
    assert estimate < 0.25
    estimate = observed(estimate, num_proposed=15, num_accepted=15)
    assert estimate > 0.7
    assert observed(estimate, num_proposed=0, num_accepted=0) == estimate


@pytest.mark.parametrize("costs", [CPU, HYBRID], ids=["trimmed", "fed again"])
def test_an_own_drafter_that_is_given_up_is_tried_again_later(costs: WidthCosts):
    control, num_failed, num_plain = DepthControl(costs), 0, 0
    while depth := control.depth(1, 16):
        control.record(1, 10.0, depth, 0, is_own=True)
        num_failed += 1
    while not control.depth(1, 16):
        control.record(1, 10.0)
        num_plain += 1
    assert 0 < num_failed < 16
    assert 4 < num_plain < 200


def test_rows_that_draft_together_are_not_taken_for_one_that_is_wrong():
    """Each of four rows is right in 90 % of its tokens, so the draft ends for all where one of them is wrong."""
    control = DepthControl(CPU)
    for number in range(400):
        control.record(4, 20.0, 1, int(number % 3 > 0), is_own=True)
    assert 0.8 < control.own_acceptance < 0.96


def _run(control: DepthControl, num_steps: int, plain_ms: float, draft_times: float) -> int:
    """Runs steps at an acceptance of 0.7, of which drafts take `draft_times` the table's; returns the last depth."""
    was_plain = True
    for number in range(num_steps):
        depth = control.depth(1, 8, 0.7) if number % 8 else 0
        ms = plain_ms if not depth else draft_times * control.costs.cost(1, 1 + depth) + plain_ms * was_plain
        control.record(1, ms, depth, depth)
        was_plain = not depth
    return control.depth(1, 8, 0.7)


def test_drafts_that_take_longer_than_the_table_says_are_given_up_and_tried_again():
    """As on a long sequence, where each draft costs three times as much."""
    control = DepthControl(STEADY)
    assert control.depth(1, 8, 0.7) > 0
    assert _run(control, 60, plain_ms=11.0, draft_times=3.0) == 0
    for _ in range(2000):
        control.record(1, 11.0)
    assert control.depth(1, 8, 0.7) > 0


def test_a_machine_that_is_slower_in_all_steps_changes_no_decision():
    control = DepthControl(STEADY)
    before = control.depth(1, 8, 0.7)
    assert _run(control, 200, plain_ms=27.5, draft_times=2.5) == before


def test_a_plain_step_that_waited_hides_no_dear_drafts():
    control = DepthControl(STEADY)
    for ms in (11.0, 1100.0):
        control.record(1, ms)
    assert _run(control, 100, plain_ms=11.0, draft_times=3.0) == 0
