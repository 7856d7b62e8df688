"""The lifecycle table, checked step by step."""

import pytest

from domain.errors import IllegalTransition
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.scheduling.sequence import MAX_ALONE, MIN_PROGRESS, Phase, Sequence


def sequence(phase: Phase = Phase.QUEUED) -> Sequence:
    return Sequence(SequenceId(1), IdRow((1, 2, 3)), 4, phase)


def test_a_step_that_the_table_lacks_changes_nothing() -> None:
    subject = sequence(Phase.FINISHED)
    with pytest.raises(IllegalTransition, match="finished to decoding"):
        subject.enter(Phase.DECODING)
    assert subject.phase is Phase.FINISHED


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
