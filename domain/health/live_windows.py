"""The last quarter of an hour in slices of five seconds, and what can be read off it: see `live_reading`.

Bounded whatever comes: a slice holds a few counts and two sketches.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from domain.health.latency_sketch import LatencySketch
from domain.health.live_reading import ORIGINS, History, Latency, LiveReading, Reuse
from domain.prefix.explanation import TIER_NAMES

T = TypeVar("T")


class TimeSlices(Generic[T]):
    """What happened lately, in slices of equal length; a slice is the whole number `at_ns // slice_ns`. `make` gives an
    empty slice. Times are of one monotonic clock and may arrive a little out of order; what is older than every slice
    that is kept is forgotten. Not thread-safe."""

    def __init__(self, slice_ns: int, num_slices: int, make: Callable[[], T]) -> None:
        self.slice_ns = slice_ns
        self.num_slices = num_slices
        self._make = make
        self._slices: dict[int, T] = {}
        self._newest = -1

    def at(self, at_ns: int) -> T:
        """The slice for what happens at `at_ns`. For what is too old, one that nobody will see."""
        number = at_ns // self.slice_ns
        if number > self._newest:
            self._newest = number
            for old in [kept for kept in self._slices if kept <= number - self.num_slices]:
                del self._slices[old]
        elif number <= self._newest - self.num_slices:
            return self._make()
        found = self._slices.get(number)
        if found is None:
            found = self._slices[number] = self._make()
        return found

    def last(self, num: int, now_ns: int) -> list[T | None]:
        """The slices up to the one of `now_ns`, oldest first; None where nothing happened."""
        end = now_ns // self.slice_ns + 1
        return [self._slices.get(number) for number in range(end - min(num, self.num_slices), end)]

    def __len__(self) -> int:
        """How many slices are kept; for leak checks."""
        return len(self._slices)


SLICE_S, NUM_SLICES = 5, 180
LATENCY_WINDOW_S = 300
RATE_WINDOW_S = 15
REUSE_WINDOWS_S = (60, 300, 900)


@dataclass(slots=True)
class _Slice:
    """`num_looked_up`: prompt tokens of its lookups."""

    tokens: Counter[str] = field(default_factory=Counter[str])
    time_to_first_token: LatencySketch = field(default_factory=LatencySketch)
    inter_token: LatencySketch = field(default_factory=LatencySketch)
    num_lookups: int = 0
    num_looked_up: int = 0


class LiveWindows:
    """Times are monotonic nanoseconds. Windows end now, and begin with a slice. Not thread-safe."""

    def __init__(self) -> None:
        self._slices = TimeSlices(SLICE_S * 10**9, NUM_SLICES, _Slice)

    def add_tokens(self, origin: str, num_tokens: int, at_ns: int) -> None:
        """`origin`: one of ORIGINS."""
        self._slices.at(at_ns).tokens[origin] += num_tokens

    def add_lookup(self, reused: Mapping[str, int], num_prompt: int, at_ns: int, *, takes_part: bool) -> None:
        """A prompt of `num_prompt` tokens was looked up. `takes_part`: whether it could have reused anything."""
        now = self._slices.at(at_ns)
        now.tokens.update(reused)
        if takes_part:
            now.num_lookups += 1
            now.num_looked_up += num_prompt

    def add_first_token(self, seconds: float, at_ns: int) -> None:
        """It came so long after its request was queued."""
        self._slices.at(at_ns).time_to_first_token.add(seconds)

    def add_gap(self, seconds: float, num_tokens: int, at_ns: int) -> None:
        """`num_tokens` tokens arrived together, `seconds` a token after the ones before them."""
        self._slices.at(at_ns).inter_token.add(seconds, num_tokens)

    def read(self, now_ns: int) -> LiveReading:
        """A few milliseconds."""
        recent = self._within(LATENCY_WINDOW_S, now_ns)
        return LiveReading(
            at_ns=now_ns,
            time_to_first_token=Latency.of(LatencySketch.of(one.time_to_first_token for one in recent)),
            inter_token=Latency.of(LatencySketch.of(one.inter_token for one in recent)),
            tokens_per_s=self._rates(now_ns),
            reuse=[_reuse(window_s, self._within(window_s, now_ns)) for window_s in REUSE_WINDOWS_S],
            history=self._history(now_ns),
        )

    def _within(self, window_s: int, now_ns: int) -> list[_Slice]:
        return [one for one in self._slices.last(window_s // SLICE_S, now_ns) if one is not None]

    def _rates(self, now_ns: int) -> dict[str, float]:
        seconds = RATE_WINDOW_S - SLICE_S + now_ns % self._slices.slice_ns / 1e9  # the last slice is not over
        found = self._within(RATE_WINDOW_S, now_ns)
        return {origin: sum(one.tokens[origin] for one in found) / seconds for origin in ORIGINS}

    def _history(self, now_ns: int) -> History:
        slices = [one or _Slice() for one in self._slices.last(NUM_SLICES, now_ns)]
        slice_ns = self._slices.slice_ns
        return History(
            slice_s=SLICE_S,
            start_ns=(now_ns // slice_ns + 1 - NUM_SLICES) * slice_ns,
            tokens={origin: [one.tokens[origin] for one in slices] for origin in ORIGINS},
            time_to_first_token=[Latency.of(one.time_to_first_token) for one in slices],
            inter_token=[Latency.of(one.inter_token) for one in slices],
        )


def _reuse(window_s: int, slices: Sequence[_Slice]) -> Reuse:
    num_lookups, num_prompt = sum(one.num_lookups for one in slices), sum(one.num_looked_up for one in slices)
    if not num_prompt:
        return Reuse(window_s, num_lookups, num_prompt, None)
    rates = {tier: sum(one.tokens[tier] for one in slices) / num_prompt for tier in TIER_NAMES}
    return Reuse(window_s, num_lookups, num_prompt, rates)
