"""The lifecycle table, checked step by step."""

from itertools import pairwise

import pytest

from domain.errors import IllegalTransition
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.scheduling.sequence import MAX_ALONE, MIN_PROGRESS, TRANSITIONS, Phase, Sequence


def sequence(phase: Phase = Phase.QUEUED) -> Sequence:
    return Sequence(SequenceId(1), IdRow((1, 2, 3)), 4, phase)


@pytest.mark.parametrize("start", Phase)
@pytest.mark.parametrize("end", Phase)
def test_only_the_steps_of_the_table_are_possible(start: Phase, end: Phase) -> None:
    subject = sequence(start)
    if end in TRANSITIONS[start]:
        subject.enter(end)
        assert subject.phase is end
    else:
        with pytest.raises(IllegalTransition, match=f"{start.value} to {end.value}"):
            subject.enter(end)
        assert subject.phase is start


def test_every_phase_reaches_an_end_and_ends_are_final() -> None:
    assert {phase for phase in Phase if not TRANSITIONS[phase]} == {Phase.FINISHED, Phase.CANCELLED, Phase.FAILED}
    for phase in Phase:
        if TRANSITIONS[phase]:
            assert {Phase.CANCELLED, Phase.FAILED} <= TRANSITIONS[phase]


def test_the_whole_way_with_and_without_restoring() -> None:
    straight = (Phase.QUEUED, Phase.PREFILLING, Phase.DECODING, Phase.FINISHED)
    restored = (Phase.QUEUED, Phase.RESTORING, Phase.PREFILLING, Phase.DECODING, Phase.FINISHED)
    for way in (straight, restored):
        assert all(after in TRANSITIONS[before] for before, after in pairwise(way))


def preempted_at(subject: Sequence, position: int, *, is_alone: bool = True) -> bool:
    subject.num_computed = position
    return subject.may_resume(is_alone=is_alone)


def test_a_preemption_beside_others_restarts_the_count_of_lonely_ones() -> None:
    subject = sequence()
    for _ in range(2):
        assert all(preempted_at(subject, 80) for _ in range(MAX_ALONE))
        assert preempted_at(subject, 80, is_alone=False)
    assert subject.num_preempted == 2 * (MAX_ALONE + 1)


def test_enough_progress_since_the_first_restarts_it_too() -> None:
    subject, last = sequence(), 300 + MIN_PROGRESS - 1
    assert all(preempted_at(subject, position) for position in (300, 301, last))
    assert not preempted_at(subject, last)
    assert preempted_at(subject, last + 1)
