"""When the way into the store hurries, and whether that is worth it."""

import pytest

from domain.write_pace import NUM_TRIED, WritePace

MB = 1_000_000


def test_who_waits_long_makes_it_hurry_until_little_is_left() -> None:
    pace = WritePace(target_s=2.0)
    pace.stored(64 * MB, 0.2, 0.15, hurried=False, ahead=True)
    assert [pace.hurries(0, waited_s) for waited_s in (0.0, 0.9, 1.1, 0.9, 0.6, 0.4, 0.9)] == [
        *(False, False, True, True, True, False, False),
    ]


def test_what_waits_is_foreseen_from_what_was_stored_lately() -> None:
    pace = WritePace(target_s=2.0)
    assert not pace.hurries(10_000 * MB, 0.0), "nothing was measured yet"
    pace.stored(200 * MB, 1.0, 1.0, hurried=False, ahead=True)
    assert not pace.hurries(150 * MB, 0.0)
    assert pace.hurries(250 * MB, 0.0)
    for _ in range(20):
        pace.stored(1000 * MB, 1.0, 0.0, hurried=True, ahead=True)
    assert not pace.hurries(250 * MB, 0.0)


@pytest.mark.parametrize(("hurried_s", "pays"), [(0.1, True), (0.19, False), (0.3, False)])
def test_hurrying_is_tried_and_goes_on_while_it_stores_more(hurried_s: float, pays: bool) -> None:
    """A slow processor, or a slow disk, where half as much again has to be written."""
    pace = WritePace(target_s=2.0)

    def run(num_batches: int) -> list[bool]:
        chosen: list[bool] = []
        for _ in range(num_batches):
            chosen.append(pace.hurries(0, 5.0))
            waited_s = 0.0 if chosen[-1] else 0.15
            pace.stored(64 * MB, hurried_s if chosen[-1] else 0.2, waited_s, hurried=chosen[-1], ahead=True)
        return chosen

    pace.stored(64 * MB, 0.2, 0.15, hurried=False, ahead=True)
    assert run(10) == [*[True] * NUM_TRIED, *[pays] * (10 - NUM_TRIED)]
    # Another time it may be otherwise, so it is tried again.
    assert not pace.hurries(0, 0.0)
    assert run(NUM_TRIED) == [True] * NUM_TRIED


@pytest.mark.parametrize(("waited_s", "tries"), [(0.0, False), (0.06, False), (0.09, True), (0.2, True)])
def test_hurrying_is_tried_only_where_compressing_is_waited_for(waited_s: float, tries: bool) -> None:
    """0.2 s a batch, 0.14 of them writing: with half as many bytes again that is as long."""
    pace = WritePace(target_s=2.0)
    assert not pace.hurries(0, 5.0), "nothing is known of what is waited for"
    pace.stored(64 * MB, 0.2, 0.2, hurried=False, ahead=False)
    assert not pace.hurries(0, 5.0), "nor from a batch that nothing went before"
    pace.stored(64 * MB, 0.2, waited_s, hurried=False, ahead=True)
    assert pace.hurries(0, 5.0) is tries


def test_who_is_late_with_writing_hurries_once_compressing_is_what_it_waits_for() -> None:
    pace = WritePace(target_s=2.0)
    chosen: list[bool] = []
    for waited_s in (0.0, 0.0, *[0.15] * 8):
        pace.stored(64 * MB, 0.2, waited_s, hurried=[False, *chosen][-1], ahead=True)
        chosen.append(pace.hurries(0, 5.0))
    assert chosen == [False, False, False, *[True] * NUM_TRIED, False, False, False], "no batch was stored faster"
