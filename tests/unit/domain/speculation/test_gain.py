"""Costs by rows and width, and the depth that they advise."""

from math import inf, nan

import pytest

from domain.speculation.acceptance import HEAD_PRIOR, Acceptance
from domain.speculation.gain import PROBE_CREDIT, DepthControl, WidthCosts, depth_of

CPU = {(1, 1): 9.4, (1, 2): 12.1, (1, 3): 14.0, (1, 5): 14.5, (1, 8): 17.8, (1, 16): 22.3}
CPU |= {(4, 1): 14.2, (4, 2): 21.8, (4, 3): 24.2, (4, 5): 26.3, (4, 8): 41.8, (4, 16): 72.9}
UNPLANNED_CUDA = {(1, 1): 8.6, (1, 2): 88.0, (1, 3): 92.0, (1, 5): 90.0, (1, 8): 74.0, (1, 16): 86.0}


def test_costs_are_interpolated_between_widths_and_rows_and_unknown_beyond():
    costs = WidthCosts.measured(CPU)
    assert costs.cost(1, 5) == 14.5
    assert costs.cost(1, 4) == pytest.approx(14.25)
    assert costs.cost(2, 1) == pytest.approx(11.0)
    assert costs.cost(2, 4) == pytest.approx((14.25 * 2 + 25.25) / 3)
    assert costs.most_depth == 15
    assert [costs.cost(rows, width) for rows, width in ((5, 1), (1, 17), (0, 1), (1, 0))] == [inf] * 4


def test_noise_is_corrected_in_favour_of_plain_decoding():
    slow_first = WidthCosts.measured({(1, 1): 20.0, (1, 2): 12.0, (1, 5): 15.0})
    assert [slow_first.cost(1, width) for width in (1, 2, 5)] == [12.0, 12.0, 15.0]
    slow_middle = WidthCosts.measured(UNPLANNED_CUDA)
    assert [slow_middle.cost(1, width) for width in (1, 2, 8, 16)] == [8.6, 88.0, 92.0, 92.0]
    fast_rows = WidthCosts.measured({(1, 1): 9.0, (1, 2): 12.0, (4, 1): 8.0, (4, 2): 11.0})
    assert [fast_rows.cost(rows, width) for rows in (1, 4) for width in (1, 2)] == [8.0, 12.0, 8.0, 12.0]


@pytest.mark.parametrize(
    "pass_ms",
    [{}, {(2, 1): 1.0}, {(1, 2): 1.0}, {(1, 1): 1.0, (2, 2): 1.0}, {(1, 1): 0.0}, {(1, 1): nan}, {(1, 1): inf}],
)
def test_a_table_that_is_no_grid_of_positive_costs_is_refused(pass_ms: dict[tuple[int, int], float]):
    with pytest.raises(ValueError, match="must"):
        WidthCosts.measured(pass_ms)


def test_where_text_is_copied_a_cpu_drafts_far_and_an_unplanned_gpu_never():
    cpu, gpu = WidthCosts.measured(CPU), WidthCosts.measured(UNPLANNED_CUDA)
    assert depth_of(cpu, [0.95], 15) == 15
    assert depth_of(cpu, [0.6], 15) in range(2, 8)
    assert depth_of(cpu, [0.2], 15) == 0
    assert depth_of(gpu, [0.9], 15) == 0
    assert depth_of(cpu, [0.95], 3) == 3
    assert depth_of(cpu, [], 15) == 0


def test_a_group_drafts_as_far_as_its_rows_are_accepted_together():
    costs = WidthCosts.measured(CPU)
    assert depth_of(costs, [0.97] * 4, 15) > 0
    assert depth_of(costs, [0.97, 0.97, 0.97, 0.3], 15) == 0
    assert depth_of(costs, [1.0] * 5, 15) == 0, "five rows were not measured"


def test_drafting_by_the_model_and_feeding_again_are_part_of_the_cost():
    plain, dear = WidthCosts.measured(CPU), WidthCosts.measured(CPU, draft_ms=8.0)
    hybrid = WidthCosts.measured(CPU, refeeds=True)
    assert depth_of(plain, [0.6], 15, is_drafting=True) > 0
    assert depth_of(dear, [0.6], 15, is_drafting=True) == 0
    assert depth_of(dear, [0.6], 15) > 0
    assert depth_of(hybrid, [0.6], 15) == 0
    assert depth_of(hybrid, [0.95], 15) > 0


def test_an_estimate_follows_the_text_within_some_tokens():
    acceptance = Acceptance()
    assert acceptance.probability == HEAD_PRIOR
    for _ in range(16):
        acceptance.observe(num_proposed=3, num_accepted=0)
    assert acceptance.probability < 0.25
    acceptance.observe(num_proposed=15, num_accepted=15)
    assert acceptance.probability > 0.7
    before = acceptance.probability
    acceptance.observe(num_proposed=0, num_accepted=0)
    assert acceptance.probability == before


def test_a_credit_that_is_spent_stops_drafts_however_likely_they_seem():
    control = DepthControl(WidthCosts.measured(CPU))
    num_verified = 0
    while depth := control.depth([0.95], 15):
        control.record(1, depth, 0)
        num_verified += 1
    assert 2 < num_verified < 12
    assert 0 <= control.credit < 0.3


def test_credit_pays_for_probes_where_the_estimate_advises_against_drafting():
    control = DepthControl(WidthCosts.measured(CPU, draft_ms=1.0))
    assert control.depth([0.1], 15, is_drafting=True) == 1
    assert control.depth([0.1], 15) == 0, "lookup knows its hits without a probe"
    num_failed = 0
    while control.depth([0.1], 15, is_drafting=True):
        control.record(1, 1, 0, is_drafting=True)
        num_failed += 1
    assert num_failed in (5, 6)
    num_plain = 0
    while not control.depth([0.1], 15, is_drafting=True):
        control.record(1)
        num_plain += 1
    assert 0 < num_plain <= 60
    for _ in range(10):
        control.record(1, 1, 1, is_drafting=True)
        assert control.credit > PROBE_CREDIT, "a success pays for the next probe"


def test_what_could_not_pay_if_all_were_accepted_is_not_probed():
    control = DepthControl(WidthCosts.measured(UNPLANNED_CUDA))
    assert control.depth([0.1], 15, is_drafting=True) == 0


def test_costs_follow_steps_that_take_longer_than_the_table_says() -> None:
    """On a long sequence a draft costs three times the table's: it is given up, and tried again much later."""
    control = DepthControl(WidthCosts.measured({(1, width): 10.0 + width for width in (1, 2, 5, 9)}))
    assert control.depth([0.7], 8) > 0
    for _ in range(40):
        depth = control.depth([0.7], 8)
        table_ms = control.measured.cost(1, 1 + depth)
        control.record(1, depth, depth, ms=3 * table_ms if depth else table_ms)
    assert control.depth([0.7], 8) == 0
    for _ in range(2000):
        control.record(1, ms=11.0)
    assert control.depth([0.7], 8) > 0


def test_a_machine_that_is_slower_in_all_steps_changes_no_decision() -> None:
    control = DepthControl(WidthCosts.measured({(1, width): 10.0 + width for width in (1, 2, 5, 9)}))
    before = control.depth([0.8], 8)
    for number in range(100):
        depth = before if number % 2 else 0
        control.record(1, depth, depth, ms=2.5 * control.measured.cost(1, 1 + depth))
    assert control.depth([0.8], 8) == before


def test_a_plain_step_that_waited_hides_no_dear_drafts() -> None:
    """One plain step took a hundred times as long, behind a prompt; drafts that cost three times are still given up."""
    control = DepthControl(WidthCosts.measured({(1, width): 10.0 + width for width in (1, 2, 5, 9)}))
    control.record(1, ms=1100.0)
    for _ in range(80):
        depth = control.depth([0.7], 8)
        table_ms = control.measured.cost(1, 1 + depth)
        control.record(1, depth, depth, ms=3 * table_ms if depth else table_ms)
    assert control.depth([0.7], 8) == 0
