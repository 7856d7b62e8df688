"""The time that reuse saved: the pace by depth, the share of each tier, and what was not measured."""

import pytest

from domain.health.seconds_saved import Saved, restoring_by_tier, seconds_saved
from domain.models.pace import MEASURED_TOKENS, BucketPaces, Pace

NOTHING = dict.fromkeys(("live", "hot", "store", "shared"), 0.0)


def pace_of(*chunks: tuple[int, int, float]) -> Pace:
    pace = Pace()
    for start, end, seconds in chunks:
        pace.add(start, end, seconds)
    return pace


def test_reused_tokens_cost_what_their_depth_was_measured_to_cost() -> None:
    pace = pace_of((0, 1024, 1.0), (1024, 2048, 2.0), (2048, 4096, 8.0))
    assert pace.seconds_for(512) == pytest.approx(0.5)
    assert pace.seconds_for(3072) == pytest.approx(1.0 + 2.0 + 4.0)


def test_a_chunk_is_spread_over_the_depths_that_it_covers() -> None:
    assert pace_of((512, 1536, 1.0)).seconds_for(2048) == pytest.approx(2.0)


def test_a_depth_that_was_not_measured_has_the_pace_of_the_nearest() -> None:
    shallow = pace_of((0, 1024, 1.0))
    assert shallow.seconds_for(8192) == pytest.approx(8.0), "the pace of the nearest depth before"
    deep = pace_of((32_768, 33_792, 64.0))  # as after a restart: the first prompts are restored
    assert deep.seconds_for(32_768) == pytest.approx(32_768 * (64.0 / 1024) / 4), "in proportion to 64k"


@pytest.mark.parametrize(("fixed_s", "slope_s"), [(1e-3, 0.0), (1e-3, 1e-8), (0.0, 1e-7)])
@pytest.mark.parametrize(("start", "end"), [(0, 1024), (1024, 2048), (32_768, 65_536)])
def test_one_measured_depth_never_prices_another_too_high(fixed_s: float, slope_s: float, start: int, end: int) -> None:
    def cost(start: int, end: int) -> float:
        return (end - start) * (fixed_s + slope_s * (start + end) / 2)

    pace = pace_of((start, end, cost(start, end)))
    for num_tokens in (1024, 2048, 8192, 262_144):
        found = pace.seconds_for(num_tokens)
        assert found is not None
        assert 0 < found <= cost(0, num_tokens) * (1 + 1e-9)


def test_what_an_earlier_start_measured_weighs_as_much_as_one_chunk() -> None:
    pace = Pace(((0, 0.001), (3, 0.004)))
    assert pace.seconds_for(5120) == pytest.approx(1.024 + 3.072 + 4.096)
    pace.add(0, 1024, 3.072)
    assert pace.seconds_for(1024) == pytest.approx(2.048)


def test_a_pace_is_kept_when_its_measured_tokens_double() -> None:
    kept: list[BucketPaces] = []
    pace = Pace(keep=kept.append)
    pace.add(0, MEASURED_TOKENS - 1, 9.0)
    assert not kept, "it measures nothing"
    for _ in range(100):
        pace.add(512, 1536, 1.024)
    assert kept[0] == ((0, pytest.approx(0.001)), (1, pytest.approx(0.001)))
    assert len(kept) == 7, "after 1, 2, 4 ... 64 chunks"
    assert Pace(kept[-1]).seconds_for(2048) == pytest.approx(2.048)


def test_chunks_too_short_to_tell_measure_nothing() -> None:
    pace = pace_of((0, MEASURED_TOKENS - 1, 9.0))
    assert pace.seconds_for(1) is None
    assert seconds_saved(pace, {"hot": 512, "store": 256}, {"store": 3.0}) == Saved(num_unpriced=768)


def test_tiers_share_the_time_by_their_tokens_and_pay_for_their_own_restoring() -> None:
    found = seconds_saved(pace_of((0, 1000, 1.0)), {"hot": 600, "store": 200}, {"hot": 0.1, "store": 0.5})
    assert found.seconds == pytest.approx({**NOTHING, "hot": 0.5, "store": -0.3})
    assert found.num_unpriced == 0


def test_a_state_that_was_taken_over_costs_nothing() -> None:
    assert seconds_saved(pace_of((0, 1000, 1.0)), {"live": 500}, {}).seconds == pytest.approx({**NOTHING, "live": 0.5})


def test_the_slowest_tier_was_waited_for_and_each_was_copied() -> None:
    assert restoring_by_tier({"hot": 300, "store": 100}, 2.0, 0.4) == pytest.approx({"hot": 0.3, "store": 2.1})
    assert restoring_by_tier({"store": 0, "shared": 0}, 2.0, 0.4) == {"store": 0.0, "shared": 2.0}
    assert restoring_by_tier({}, 2.0, 0.4) == {}


def test_a_window_is_a_difference() -> None:
    before, more = Saved({**NOTHING, "hot": 1.0}, 5), Saved({**NOTHING, "hot": -3.0, "store": 2.0}, 1)
    whole = before.plus(more)
    assert whole == Saved({**NOTHING, "hot": -2.0, "store": 2.0}, 6)
    assert whole.plus(before, -1) == more
