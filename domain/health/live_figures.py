"""Figures of the last quarter of an hour: latencies, tokens by origin and reuse, in slices of five seconds.

Memory is bounded: a slice holds a few counts and two sketches, and a sketch counts durations in some 500 buckets. Each
bucket is 4 % wider than the one before it, from 10 us to one hour, so that a quantile is off by 2 % at most; a shorter
or longer duration counts as the shortest or the longest. Sketches add up.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Generic, TypeVar

from domain.prefix.explanation import TIER_NAMES

SHORTEST_S, LONGEST_S = 1e-5, 3600.0
_LOG_WIDTH = math.log(1.04)
_LAST = math.ceil(math.log(LONGEST_S / SHORTEST_S) / _LOG_WIDTH)


class LatencySketch:
    """Counts of durations in buckets. Not thread-safe. The last quantiles are cached until a value is added."""

    __slots__ = ("_asked", "_counts")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._asked: tuple[tuple[float, ...], tuple[float | None, ...]] | None = None

    @classmethod
    def of(cls, sketches: "Iterable[LatencySketch]") -> "LatencySketch":
        """Returns the sum of several sketches."""
        whole = cls()
        for sketch in sketches:
            whole._counts.update(sketch._counts)
        return whole

    @property
    def num(self) -> int:
        return self._counts.total()

    def add(self, seconds: float, times: int = 1) -> None:
        self._counts[_bucket(seconds)] += times
        self._asked = None

    def quantiles(self, *shares: float) -> tuple[float | None, ...]:
        """Returns the seconds that each share (0 to 1, nearest rank) of the values did not exceed; None without
        values."""
        if not self._counts:
            return (None,) * len(shares)
        if self._asked is None or self._asked[0] != shares:
            self._asked = shares, self._look_up(shares)
        return self._asked[1]

    def _look_up(self, shares: tuple[float, ...]) -> tuple[float, ...]:
        buckets = sorted(self._counts)
        ranks = list(accumulate(self._counts[bucket] for bucket in buckets))
        wanted = (max(1, math.ceil(share * ranks[-1])) for share in shares)
        return tuple(_middle(buckets[bisect_left(ranks, rank)]) for rank in wanted)


def _bucket(seconds: float) -> int:
    if seconds <= SHORTEST_S:
        return 0
    return min(_LAST, math.ceil(math.log(seconds / SHORTEST_S) / _LOG_WIDTH))


def _middle(bucket: int) -> float:
    """The logarithmic middle of a bucket, in seconds."""
    return SHORTEST_S * math.exp((bucket - 0.5) * _LOG_WIDTH) if bucket else SHORTEST_S


ORIGINS = ("computed", *TIER_NAMES, "recomputed", "output")
"""The origins of tokens: computed or reused from a tier, recomputed after a preemption, or generated."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles in seconds; None without measurements. `num`: the number of measurements."""

    num: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None

    @classmethod
    def of(cls, sketch: LatencySketch) -> "Latency":
        return cls(sketch.num, *sketch.quantiles(0.5, 0.9, 0.99))


@dataclass(frozen=True, slots=True)
class Reuse:
    """The share of prompt tokens that each tier gave, over the lookups within `window_s`; None without a lookup that
    could reuse anything."""

    window_s: int
    num_lookups: int
    num_prompt_tokens: int
    hit_rate: Mapping[str, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Slices of `slice_s`, oldest first; the last one is incomplete. `start_ns`: the start of the first one, on the
    monotonic clock. `tokens`: by origin."""

    slice_s: int
    start_ns: int
    tokens: Mapping[str, Sequence[int]]
    time_to_first_token: Sequence[Latency]
    inter_token: Sequence[Latency]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReading:
    """The figures at one time. `tokens_per_s`: by origin, over RATE_WINDOW_S; the latencies over LATENCY_WINDOW_S.
    `inter_token`: between one token of a choice and its next, as the engine reports them."""

    at_ns: int
    time_to_first_token: Latency
    inter_token: Latency
    tokens_per_s: Mapping[str, float]
    reuse: Sequence[Reuse]
    history: History


T = TypeVar("T")


class TimeSlices(Generic[T]):
    """The last slices of equal length; the number of a slice is `at_ns // slice_ns`. `make` returns an empty slice.
    Times are of one monotonic clock and may arrive a little out of order; a value older than every kept slice is
    dropped. Not thread-safe."""

    def __init__(self, slice_ns: int, num_slices: int, make: Callable[[], T]) -> None:
        self.slice_ns = slice_ns
        self.num_slices = num_slices
        self._make = make
        self._slices: dict[int, T] = {}
        self._newest = -1

    def at(self, at_ns: int) -> T:
        """Returns the slice of `at_ns`. A time that is too old gets a slice that is not kept."""
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
        """Returns the last `num` slices up to the one of `now_ns`, oldest first; None for an empty one."""
        end = now_ns // self.slice_ns + 1
        return [self._slices.get(number) for number in range(end - min(num, self.num_slices), end)]

    def __len__(self) -> int:
        """The number of kept slices; for leak checks."""
        return len(self._slices)


SLICE_S, NUM_SLICES = 5, 180
LATENCY_WINDOW_S = 300
RATE_WINDOW_S = 15
REUSE_WINDOWS_S = (60, 300, 900)


@dataclass(slots=True)
class _Slice:
    """Counts of one slice. `num_looked_up`: prompt tokens of its lookups."""

    tokens: Counter[str] = field(default_factory=Counter[str])
    time_to_first_token: LatencySketch = field(default_factory=LatencySketch)
    inter_token: LatencySketch = field(default_factory=LatencySketch)
    num_lookups: int = 0
    num_looked_up: int = 0


class LiveWindows:
    """The figures of the last NUM_SLICES slices. Times are monotonic nanoseconds. Not thread-safe."""

    def __init__(self) -> None:
        self._slices = TimeSlices(SLICE_S * 10**9, NUM_SLICES, _Slice)

    def add_tokens(self, origin: str, num_tokens: int, at_ns: int) -> None:
        """Counts tokens. `origin`: one of ORIGINS."""
        self._slices.at(at_ns).tokens[origin] += num_tokens

    def add_lookup(self, reused: Mapping[str, int], num_prompt: int, at_ns: int, *, takes_part: bool) -> None:
        """Counts the lookup of a prompt of `num_prompt` tokens. `takes_part`: the prompt could have reused
        something."""
        now = self._slices.at(at_ns)
        now.tokens.update(reused)
        if takes_part:
            now.num_lookups += 1
            now.num_looked_up += num_prompt

    def add_first_token(self, seconds: float, at_ns: int) -> None:
        """Counts a first token, `seconds` after its request was queued."""
        self._slices.at(at_ns).time_to_first_token.add(seconds)

    def add_gap(self, seconds: float, num_tokens: int, at_ns: int) -> None:
        """Counts `num_tokens` tokens that arrived together, `seconds` a token after the ones before them."""
        self._slices.at(at_ns).inter_token.add(seconds, num_tokens)

    def read(self, now_ns: int) -> LiveReading:
        """Returns the reading at `now_ns`; takes a few milliseconds."""
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
