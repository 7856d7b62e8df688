"""When the way into the store hurries, and which encoding is the quicker one."""

import pytest

from domain.write_pace import EncodingPace, WritePace

MB = 1_000_000


def test_who_waits_long_makes_it_hurry_until_little_is_left() -> None:
    pace = WritePace(target_s=2.0)
    assert [pace.hurries(0, waited_s) for waited_s in (0.0, 0.9, 1.1, 0.9, 0.6, 0.4, 0.9)] == [
        *(False, False, True, True, True, False, False),
    ]


def test_what_waits_is_foreseen_from_what_was_stored_lately() -> None:
    pace = WritePace(target_s=2.0)
    assert not pace.hurries(10_000 * MB, 0.0), "nothing was measured yet"
    pace.stored(200 * MB, 1.0)
    assert not pace.hurries(150 * MB, 0.0)
    assert pace.hurries(250 * MB, 0.0)
    for _ in range(20):
        pace.stored(1000 * MB, 1.0)
    assert not pace.hurries(250 * MB, 0.0)


@pytest.mark.parametrize(
    ("dense_s", "raw_s", "write_s", "is_raw_quicker"),
    [
        (0.2, 0.001, 0.05, True),  # encoding is the slower stage, the disk has time
        (0.02, 0.001, 0.5, False),  # the disk is: half as much again would have to be written
        (0.02, 0.001, 0.019, False),  # the same in a blink: no reason to change
        (0.2, 0.3, 0.05, False),  # raw takes as long, as where bytes must come from a device first
    ],
)
def test_the_slower_stage_decides(dense_s: float, raw_s: float, write_s: float, is_raw_quicker: bool) -> None:
    pace = EncodingPace(num_threads=2)
    assert not pace.is_raw_quicker
    pace.encoded(15 * MB, 10 * MB, dense_s, is_dense=True)
    pace.encoded(15 * MB, 15 * MB, raw_s, is_dense=False)
    pace.written(10 * MB, write_s)
    assert pace.is_raw_quicker is is_raw_quicker
