"""What a prefill turn took, also where the backend returned before it was computed."""

from domain.scheduling.step_values import StepClock, StepPace

MS = 1_000_000


def test_decode_steps_since_the_last_turn_are_summed_up() -> None:
    clock = StepClock()
    for _ in range(3):
        clock.decoded(10 * MS)
    clock.prefilled(400 * MS)
    assert clock.pace == StepPace(1, turn_s=0.4, step_s=0.01)
    clock.decoded(10 * MS)
    clock.decoded(12 * MS)
    assert clock.pace == StepPace(1, turn_s=0.4, decode_s=0.022, num_decodes=2, step_s=0.012)
    clock.prefilled(100 * MS)
    assert clock.pace == StepPace(2, turn_s=0.1, step_s=0.012)


def test_what_the_first_step_behind_a_turn_waits_for_is_the_turns() -> None:
    clock = StepClock()
    clock.decoded(10 * MS)
    clock.prefilled(2 * MS)
    clock.decoded(95 * MS)
    assert clock.pace == StepPace(1, turn_s=0.087, decode_s=0.01, num_decodes=1, step_s=0.01)
    clock.decoded(11 * MS)
    assert clock.pace == StepPace(1, turn_s=0.087, decode_s=0.021, num_decodes=2, step_s=0.011)
    clock.prefilled(3 * MS)
    assert clock.pace == StepPace(2, turn_s=0.088, step_s=0.011)
    clock.decoded(10 * MS)
    assert clock.pace == StepPace(2, turn_s=0.003, decode_s=0.01, num_decodes=1, step_s=0.01)
