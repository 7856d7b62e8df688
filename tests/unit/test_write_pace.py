"""When the way into the store hurries, and whether that is worth it."""

import pytest

from domain.codec_choice import TYPICAL_RATIO
from domain.write_pace import NUM_TRIED, WritePace

MB = 1_000_000


def test_who_waits_long_makes_it_hurry_until_little_is_left() -> None:
    pace = WritePace(target_s=2.0)
    pace.stored(64 * MB, 0.2, 0.05, hurried=False, ahead=True)
    assert [pace.hurries(0, waited_s) for waited_s in (0.0, 0.9, 1.1, 0.9, 0.6, 0.4, 0.9)] == [
        *(False, False, True, True, True, False, False),
    ]


def test_what_waits_is_foreseen_from_what_was_stored_lately() -> None:
    pace = WritePace(target_s=2.0)
    assert not pace.hurries(10_000 * MB, 0.0), "nothing was measured yet"
    pace.stored(200 * MB, 1.0, 0.0, hurried=False, ahead=True)
    assert not pace.hurries(150 * MB, 0.0)
    assert pace.hurries(250 * MB, 0.0)
    for _ in range(20):
        pace.stored(1000 * MB, 1.0, 1.0, hurried=True, ahead=True)
    assert not pace.hurries(250 * MB, 0.0)


@pytest.mark.parametrize(("hurried_s", "pays"), [(0.1, True), (0.19, False), (0.3, False)])
def test_hurrying_is_tried_and_goes_on_while_it_stores_more(hurried_s: float, pays: bool) -> None:
    """A slow processor, or a slow disk, where half as much again has to be written."""
    pace = WritePace(target_s=2.0)

    def run(num_batches: int) -> list[bool]:
        chosen: list[bool] = []
        for _ in range(num_batches):
            chosen.append(pace.hurries(0, 5.0))
            seconds = hurried_s if chosen[-1] else 0.2
            pace.stored(64 * MB, seconds, 0.05, hurried=chosen[-1], ahead=True)
        return chosen

    pace.stored(64 * MB, 0.2, 0.05, hurried=False, ahead=True)
    assert run(10) == [*[True] * NUM_TRIED, *[pays] * (10 - NUM_TRIED)]
    # Another time it may be otherwise, so it is tried again.
    assert not pace.hurries(0, 0.0)
    assert run(NUM_TRIED) == [True] * NUM_TRIED


@pytest.mark.parametrize(("worked_s", "tries"), [(0.2, False), (0.14, False), (0.11, True), (0.0, True)])
def test_a_writer_that_is_at_work_all_the_time_gets_no_more_to_write(worked_s: float, tries: bool) -> None:
    """0.2 s a batch, 0.14 of them at work: with half as many bytes again that takes as long."""
    pace = WritePace(target_s=2.0)
    assert not pace.hurries(0, 5.0), "nothing is known of what is waited for"
    pace.stored(64 * MB, 0.2, 0.0, hurried=False, ahead=False)
    assert not pace.hurries(0, 5.0), "nor from a batch that nothing went before"
    pace.stored(64 * MB, 0.2, worked_s, hurried=False, ahead=True)
    assert pace.hurries(0, 5.0) is tries


def test_a_late_writer_hurries_once_it_waits() -> None:
    pace = WritePace(target_s=2.0)
    chosen: list[bool] = []
    for worked_s in (0.2, 0.2, *[0.05] * 8):
        pace.stored(64 * MB, 0.2, worked_s, hurried=[False, *chosen][-1], ahead=True)
        chosen.append(pace.hurries(0, 5.0))
    assert chosen == [False, False, False, *[True] * NUM_TRIED, False, False, False], "no batch was stored faster"


def test_who_writes_state_as_it_is_compresses_in_a_hurry() -> None:
    pace = WritePace(target_s=2.0, hurry_ratio=1 / TYPICAL_RATIO)
    pace.stored(64 * MB, 0.2, 0.2, hurried=False, ahead=True)
    assert not pace.hurries(0, 0.5)
    assert pace.hurries(0, 5.0)
