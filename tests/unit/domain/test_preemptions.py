"""Who is hopeless: preempted alone, again and again, and no further in between."""

from domain.scheduling.preemption import MAX_ALONE, MIN_PROGRESS, Preemptions


def test_company_begins_the_count_anew() -> None:
    preemptions = Preemptions()
    for _ in range(2):
        assert all(preemptions.add(80, is_alone=True) for _ in range(MAX_ALONE))
        assert preemptions.add(80, is_alone=False)
    assert preemptions.count == 2 * (MAX_ALONE + 1)


def test_so_does_progress_since_the_first_and_nothing_less() -> None:
    preemptions, last = Preemptions(), 300 + MIN_PROGRESS - 1
    assert all(preemptions.add(position, is_alone=True) for position in (300, 301, last))
    assert not preemptions.add(last, is_alone=True)
    assert preemptions.add(last + 1, is_alone=True)
