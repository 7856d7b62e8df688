"""The last minutes read off: tokens by origin, rates, percentiles, what was reused and when that is "n/a"."""

from collections.abc import Callable

from domain.health.live_figures import NUM_SLICES, SLICE_S, Counts, Latency, LiveReading, Readings, Reuse, bucket_of
from domain.ids import ModelId

S = 10**9
NOW = 10_000 * S
"""The beginning of a slice."""

MODEL = ModelId("demo")


class Windows:
    """Counts that change at chosen times."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._readings = Readings[Counts](SLICE_S * S, NUM_SLICES)

    def change(self, at_ns: int, change: Callable[[Counts], object]) -> None:
        self._readings.before_change(at_ns, self._counts.copy)
        change(self._counts)

    def add_tokens(self, origin: str, num_tokens: int, at_ns: int, model: ModelId = MODEL) -> None:
        self.change(at_ns, lambda counts: counts.tokens.update({(model, origin): num_tokens}))

    def add_lookup(self, reused: dict[str, int], num_prompt: int, at_ns: int, model: ModelId = MODEL) -> None:
        for tier, num_tokens in reused.items():
            self.add_tokens(tier, num_tokens, at_ns, model)

        def look_up(counts: Counts) -> None:
            counts.lookups[model] += 1
            counts.looked_up[model] += num_prompt

        self.change(at_ns, look_up)

    def read(self, now_ns: int) -> LiveReading:
        return LiveReading.of(self._readings.starts(now_ns, self._counts.copy()), now_ns)


def test_nothing_happened() -> None:
    found = Windows().read(NOW)
    assert found.time_to_first_token == found.inter_token == Latency(0, None, None, None)
    assert set(found.tokens_per_s.values()) == {0.0}
    assert [(one.window_s, one.num_lookups, one.hit_rate) for one in found.reuse] == [
        (60, 0, None),
        (300, 0, None),
        (900, 0, None),
    ]
    assert {len(counts) for counts in found.history.tokens.values()} == {NUM_SLICES}


def test_tokens_stand_in_the_slice_in_which_they_came() -> None:
    windows = Windows()
    windows.add_tokens("computed", 512, NOW - 1)
    windows.add_tokens("computed", 60, NOW)
    windows.add_tokens("computed", 40, NOW, ModelId("other"))
    windows.add_tokens("output", 3, NOW + 4 * S)
    history = windows.read(NOW + 4 * S).history
    assert history.tokens["computed"][-2:] == [512, 100]
    assert history.tokens["output"][-2:] == [0, 3]
    assert history.start_ns == NOW - (NUM_SLICES - 1) * SLICE_S * S
    gone = windows.read(NOW + NUM_SLICES * SLICE_S * S).history
    assert not any(sum(counts) for counts in gone.tokens.values())


def test_rates_are_of_the_time_that_has_passed() -> None:
    windows = Windows()
    for seconds in range(12):
        windows.add_tokens("output", 7, NOW + seconds * S)
    assert windows.read(NOW + 12 * S).tokens_per_s["output"] == 7.0


def test_hit_rates_are_shares_of_the_tokens_looked_up_in_their_window() -> None:
    windows = Windows()
    windows.add_lookup({"store": 900}, 1000, NOW)
    later = NOW + 100 * S
    windows.add_lookup({"hot": 250, "store": 250}, 1000, later)
    minute, five, fifteen = windows.read(later).reuse
    assert (minute.num_prompt_tokens, minute.hit_rate) == (
        1000,
        {"live": 0.0, "hot": 0.25, "store": 0.25, "shared": 0.0},
    )
    rates = {"live": 0.0, "hot": 0.125, "store": 0.575, "shared": 0.0}
    assert five == Reuse(300, 2, 2000, rates, {MODEL: Reuse(300, 2, 2000, rates)})
    assert fifteen.hit_rate == five.hit_rate
    assert [one.hit_rate for one in windows.read(later + 850 * S).reuse] == [None, None, minute.hit_rate]


def test_each_model_has_its_own_share_in_each_window() -> None:
    windows, other = Windows(), ModelId("other")
    windows.add_lookup({"hot": 400}, 1000, NOW)
    windows.add_lookup({}, 3000, NOW + 200 * S, other)
    windows.add_lookup({"store": 500}, 1000, NOW + 201 * S)
    minute, five, _ = windows.read(NOW + 230 * S).reuse
    assert {model: one.num_lookups for model, one in minute.by_model.items()} == {MODEL: 1, other: 1}
    assert five.by_model[MODEL] == Reuse(300, 2, 2000, {"live": 0.0, "hot": 0.2, "store": 0.25, "shared": 0.0})
    assert five.by_model[other].hit_rate == {"live": 0.0, "hot": 0.0, "store": 0.0, "shared": 0.0}
    assert five.hit_rate == {"live": 0.0, "hot": 400 / 5000, "store": 500 / 5000, "shared": 0.0}


def test_latencies_are_of_five_minutes_and_of_each_slice() -> None:
    windows = Windows()
    windows.change(NOW, lambda counts: counts.first_token.update([bucket_of(9.0)]))
    later = NOW + 320 * S
    windows.change(later, lambda counts: counts.first_token.update([bucket_of(0.1)]))
    windows.change(later, lambda counts: counts.inter_token.update([bucket_of(0.1)]))
    found = windows.read(later)
    assert found.time_to_first_token.num == found.inter_token.num == 1
    p50_s = found.inter_token.p50_s
    assert p50_s is not None
    assert abs(p50_s - 0.1) < 0.003
    measured = [one.num for one in found.history.time_to_first_token if one.num]
    assert measured == [1, 1]
