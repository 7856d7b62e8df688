"""The reaction to memory pressure: in order, no earlier than needed, and undone with a margin."""

from dataclasses import replace

import pytest

from domain.memory.ledger import MemoryLedger, MemoryLimits
from domain.memory.pressure import Level, Relief, StepDemand, hot_budget, live_budget, relieve

LIMITS = MemoryLimits(total_bytes=1000, low_bytes=800, high_bytes=900, hard_bytes=950)
WANTED = 200


def demand(step: int, waiting: int = 0, active: int = 2, begun: int | None = None) -> StepDemand:
    return StepDemand(
        step_bytes=step,
        begun_bytes=step if begun is None else begun,
        waiting_bytes=waiting,
        num_active=active,
        num_computing=active,
    )


def held(num_bytes: int, hot: int = 0, growth: int = 0) -> MemoryLedger:
    """`num_bytes` in all, `hot` of them in the hot tier."""
    return MemoryLedger(weight_bytes=num_bytes - hot, hot_bytes=hot, growth_bytes=growth, limits=LIMITS)


def test_below_the_high_mark_there_is_no_reaction():
    assert hot_budget(held(700, hot=200), LIMITS, demand(100), 200, WANTED) == 200
    assert relieve(held(700), LIMITS, demand(100), is_paused=False) == Relief()
    assert Relief().level(is_lean=False) is Level.CALM


def test_the_hot_tier_gives_back_what_the_next_step_takes_above_high():
    assert hot_budget(held(850, hot=200), LIMITS, demand(100), 200, WANTED) == 150
    assert hot_budget(held(990, hot=100), LIMITS, demand(100), 200, WANTED) == 0


def test_the_hot_tier_makes_room_for_a_waiting_sequence_only_if_that_is_enough():
    ledger = held(700, hot=200)
    assert hot_budget(ledger, LIMITS, demand(100, waiting=300), 200, WANTED) == 50
    assert hot_budget(ledger, LIMITS, demand(100, waiting=360), 200, WANTED) == 200
    promised = replace(ledger, growth_bytes=60)
    assert hot_budget(promised, LIMITS, demand(100, waiting=300), 200, WANTED) == 200


def test_a_state_about_to_be_taken_over_stays_and_the_hot_tier_makes_room():
    """It is charged 600, and 500 of that are held already."""
    ledger = replace(held(700, hot=150), weight_bytes=50, live_bytes=500)
    asked = replace(demand(100, waiting=600), waiting_has_bytes=500)
    assert live_budget(ledger, LIMITS, asked) == 550
    assert hot_budget(ledger, LIMITS, asked, 200, WANTED) == WANTED
    tight = replace(ledger, weight_bytes=180)
    assert live_budget(tight, LIMITS, asked) == 500
    assert hot_budget(tight, LIMITS, asked, 200, WANTED) == 70


def test_a_state_about_to_be_taken_over_is_evicted_for_held_memory():
    ledger = replace(held(450), live_bytes=500)
    asked = replace(demand(0, waiting=600), waiting_has_bytes=500)
    assert live_budget(ledger, LIMITS, asked) == 450


def test_live_states_do_not_keep_admission_paused():
    assert not relieve(held(850), LIMITS, demand(50), is_paused=True).admits
    assert relieve(replace(held(750), live_bytes=100), LIMITS, demand(50), is_paused=True).admits


def test_the_hot_tier_grows_back_in_steps_below_low():
    assert hot_budget(held(600, hot=100), LIMITS, demand(100), 100, WANTED) == 126
    assert hot_budget(held(750, hot=100), LIMITS, demand(100), 100, WANTED) == 100
    assert hot_budget(held(100), LIMITS, demand(0), 199, WANTED) == WANTED


def test_admission_pauses_above_high_and_resumes_below_low():
    paused = relieve(held(840), LIMITS, demand(100), is_paused=False)
    assert not paused.admits
    assert paused.level(is_lean=False) is Level.PAUSED
    assert not relieve(held(750), LIMITS, demand(100), is_paused=True).admits
    assert relieve(held(700), LIMITS, demand(100), is_paused=True).admits


def test_preemption_goes_down_to_the_high_mark_and_is_the_last_resort():
    assert relieve(held(850), LIMITS, demand(100), is_paused=False).preempt_bytes == 0
    assert relieve(held(937), LIMITS, demand(100, begun=12), is_paused=False).preempt_bytes == 0, "a restore can wait"
    pressed = relieve(held(945), LIMITS, demand(12), is_paused=False)
    assert pressed.preempt_bytes == 945 + 12 - 900
    assert pressed.level(is_lean=False) is Level.PREEMPTING


def test_the_only_sequence_is_preempted_too_at_a_level_of_its_own():
    alone = relieve(held(945), LIMITS, demand(12, active=1), is_paused=False)
    assert (alone.preempt_bytes, alone.level(is_lean=False)) == (57, Level.REFUSING)
    assert relieve(held(937), LIMITS, demand(12, active=1), is_paused=False).level(is_lean=False) is Level.PAUSED
    assert relieve(held(2000), LIMITS, demand(0, waiting=451, active=0), is_paused=False).preempt_bytes == 0


def test_the_only_sequence_waits_where_writing_its_records_makes_room():
    over = replace(held(945 - 20), queued_bytes=20)
    waits = relieve(over, LIMITS, demand(12, active=1), is_paused=False, may_hold=True)
    assert waits == Relief(admits=False, is_held=True)
    assert waits.level(is_lean=False) is Level.PAUSED
    assert relieve(over, LIMITS, demand(30, active=1), is_paused=False, may_hold=True).preempts_only, (
        "it makes too little"
    )
    assert relieve(over, LIMITS, demand(12, active=2), is_paused=False, may_hold=True).preempt_bytes
    assert relieve(over, LIMITS, demand(12, active=1), is_paused=False).preempts_only


@pytest.mark.parametrize("num_bytes", [0, 500, 949, 2000])
def test_admission_does_not_pause_while_no_sequence_computes(num_bytes: int):
    assert relieve(held(num_bytes), LIMITS, demand(0, waiting=1, active=0), is_paused=True).admits


def test_levels_ascend_as_memory_gets_short():
    levels = [relieve(held(at), LIMITS, demand(100), is_paused=False).level(is_lean=False) for at in range(0, 1000)]
    assert levels == sorted(levels)
    assert {levels[0], levels[-1]} == {Level.CALM, Level.PREEMPTING}
