"""The last minutes read off: tokens by origin, rates, percentiles, what was reused and when that is "n/a"."""

from domain.health.live_figures import NUM_SLICES, SLICE_S, Latency, LiveWindows

S = 10**9
NOW = 10_000 * S
"""The beginning of a slice."""


def test_nothing_happened() -> None:
    found = LiveWindows().read(NOW)
    assert found.time_to_first_token == found.inter_token == Latency(0, None, None, None)
    assert set(found.tokens_per_s.values()) == {0.0}
    assert [(one.window_s, one.num_lookups, one.hit_rate) for one in found.reuse] == [
        (60, 0, None),
        (300, 0, None),
        (900, 0, None),
    ]
    assert {len(counts) for counts in found.history.tokens.values()} == {NUM_SLICES}


def test_tokens_stand_in_the_slice_in_which_they_came() -> None:
    windows = LiveWindows()
    windows.add_tokens("computed", 512, NOW - 1)
    windows.add_tokens("computed", 100, NOW)
    windows.add_tokens("output", 3, NOW + 4 * S)
    history = windows.read(NOW + 4 * S).history
    assert history.tokens["computed"][-2:] == [512, 100]
    assert history.tokens["output"][-2:] == [0, 3]
    assert history.start_ns == NOW - (NUM_SLICES - 1) * SLICE_S * S
    gone = windows.read(NOW + NUM_SLICES * SLICE_S * S).history
    assert not any(sum(counts) for counts in gone.tokens.values())


def test_rates_are_of_the_time_that_has_passed() -> None:
    windows = LiveWindows()
    for seconds in range(12):
        windows.add_tokens("output", 7, NOW + seconds * S)
    assert windows.read(NOW + 12 * S).tokens_per_s["output"] == 7.0


def test_hit_rates_are_shares_of_the_tokens_looked_up_in_their_window() -> None:
    windows = LiveWindows()
    windows.add_lookup({"store": 900}, 1000, NOW, takes_part=True)
    later = NOW + 100 * S
    windows.add_lookup({"hot": 250, "store": 250}, 1000, later, takes_part=True)
    minute, five, fifteen = windows.read(later).reuse
    assert (minute.num_prompt_tokens, minute.hit_rate) == (
        1000,
        {"live": 0.0, "hot": 0.25, "store": 0.25, "shared": 0.0},
    )
    assert five == type(five)(300, 2, 2000, {"live": 0.0, "hot": 0.125, "store": 0.575, "shared": 0.0})
    assert fifteen.hit_rate == five.hit_rate
    assert [one.hit_rate for one in windows.read(later + 850 * S).reuse] == [None, None, minute.hit_rate]


def test_prompts_that_could_reuse_nothing_make_no_rate() -> None:
    windows = LiveWindows()
    windows.add_lookup({}, 5000, NOW, takes_part=False)
    assert [one.hit_rate for one in windows.read(NOW).reuse] == [None, None, None]
    windows.add_lookup({"hot": 1}, 2, NOW, takes_part=True)
    assert windows.read(NOW).reuse[0].hit_rate == {"live": 0.0, "hot": 0.5, "store": 0.0, "shared": 0.0}


def test_latencies_are_of_five_minutes_and_of_each_slice() -> None:
    windows = LiveWindows()
    windows.add_first_token(9.0, NOW)
    later = NOW + 320 * S
    windows.add_first_token(0.1, later)
    windows.add_gap(0.1, 4, later)
    found = windows.read(later)
    assert found.time_to_first_token.num == 1
    assert found.inter_token.num == 4
    p50_s = found.inter_token.p50_s
    assert p50_s is not None
    assert abs(p50_s - 0.1) < 0.003
    measured = [one.num for one in found.history.time_to_first_token if one.num]
    assert measured == [1, 1]
