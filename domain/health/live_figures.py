"""Counts and latencies of requests, added up since the start, and the figures of the last quarter of an hour.

A window is the difference of two readings of the same counts:

    start                  reading    reading            now
      |--------- ... ---------|----------|----------------|
                              |<-- a window: now - then ->|

Memory is bounded: a reading holds a few counts and two histograms, and a histogram has some 500 buckets. Each bucket is
4 % wider than the one before it, from 10 us to one hour, so that a quantile is off by 2 % at most; a shorter or longer
duration counts as the shortest or the longest.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise, starmap
from typing import Generic, TypeVar

from domain.ids import ModelId
from domain.prefix.explanation import TIER_NAMES

SHORTEST_S, LONGEST_S = 1e-5, 3600.0
_LOG_WIDTH = math.log(1.04)
_LAST = math.ceil(math.log(LONGEST_S / SHORTEST_S) / _LOG_WIDTH)


def bucket_of(seconds: float) -> int:
    """Returns the number of the bucket that counts a duration."""
    if seconds <= SHORTEST_S:
        return 0
    return min(_LAST, math.ceil(math.log(seconds / SHORTEST_S) / _LOG_WIDTH))


def quantiles(buckets: Mapping[int, int], *shares: float) -> tuple[float | None, ...]:
    """Returns the seconds that each share (0 to 1, nearest rank) of the durations did not exceed; None without any.
    `buckets`: the number of durations in each."""
    if not buckets:
        return (None,) * len(shares)
    order = sorted(buckets)
    ranks = list(accumulate(buckets[bucket] for bucket in order))
    wanted = (max(1, math.ceil(share * ranks[-1])) for share in shares)
    return tuple(_middle(order[bisect_left(ranks, rank)]) for rank in wanted)


def _middle(bucket: int) -> float:
    """The logarithmic middle of a bucket, in seconds."""
    return SHORTEST_S * math.exp((bucket - 0.5) * _LOG_WIDTH) if bucket else SHORTEST_S


ORIGINS = ("computed", *TIER_NAMES, "recomputed", "output")
"""The origins of tokens: computed or reused from a tier, recomputed after a preemption, or generated."""


@dataclass(slots=True, eq=False)
class Counts:
    """Counts since the start. `tokens`: by model and origin. `lookups`: by model, those that could have reused;
    `looked_up`: the tokens of their prompts. `first_token`: durations from the queue to the first token by bucket;
    `inter_token`: those between two deliveries of an answer, a token."""

    tokens: Counter[tuple[ModelId, str]] = field(default_factory=Counter[tuple[ModelId, str]])
    lookups: Counter[ModelId] = field(default_factory=Counter[ModelId])
    looked_up: Counter[ModelId] = field(default_factory=Counter[ModelId])
    first_token: Counter[int] = field(default_factory=Counter[int])
    inter_token: Counter[int] = field(default_factory=Counter[int])

    def since(self, earlier: "Counts") -> "Counts":
        """Returns the difference to an earlier reading."""
        return Counts(
            self.tokens - earlier.tokens,
            self.lookups - earlier.lookups,
            self.looked_up - earlier.looked_up,
            self.first_token - earlier.first_token,
            self.inter_token - earlier.inter_token,
        )

    def copy(self) -> "Counts":
        return self.since(Counts())

    def by_origin(self) -> Mapping[str, int]:
        """Tokens by origin, of all models."""
        found: dict[str, int] = dict.fromkeys(ORIGINS, 0)
        for (_, origin), num_tokens in self.tokens.items():
            found[origin] += num_tokens
        return found


T = TypeVar("T")


class Readings(Generic[T]):
    """A value as it was at the start of each of the last `num_slices` slices of time; the number of a slice is
    `at_ns // slice_ns`. It is read just before its first change in a slice: a slice without a change needs no reading.
    Times are of one monotonic clock; a change that is reported late counts in the newest slice. Not thread-safe."""

    def __init__(self, slice_ns: int, num_slices: int) -> None:
        self.slice_ns = slice_ns
        self.num_slices = num_slices
        self._kept: dict[int, T] = {}

    def before_change(self, at_ns: int, read: Callable[[], T]) -> None:
        """Notes that the value changes at `at_ns`, after this call."""
        number = at_ns // self.slice_ns
        if number > next(reversed(self._kept), -1):
            self._kept[number] = read()
            for old in [kept for kept in self._kept if kept <= number - self.num_slices]:
                del self._kept[old]

    def starts(self, now_ns: int, value: T) -> list[T]:
        """Returns the value at the start of each slice, oldest first, and `value`, the present one."""
        newest, found = now_ns // self.slice_ns, [value]
        for number in range(newest, newest - self.num_slices, -1):
            found.append(self._kept.get(number, found[-1]))
        return found[::-1]

    def __len__(self) -> int:
        """The number of readings; for leak checks."""
        return len(self._kept)


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles in seconds; None without measurements. `num`: the number of measurements."""

    num: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None

    @classmethod
    def of(cls, buckets: Counter[int]) -> "Latency":
        return cls(buckets.total(), *quantiles(buckets, 0.5, 0.9, 0.99))


@dataclass(frozen=True, slots=True)
class Reuse:
    """The share of prompt tokens that each tier gave, over the lookups within `window_s`; None without a lookup that
    could reuse anything. `by_model`: the same of each model that had such a lookup; empty within one."""

    window_s: int
    num_lookups: int
    num_prompt_tokens: int
    hit_rate: Mapping[str, float] | None
    by_model: Mapping[ModelId, "Reuse"] = field(default_factory=dict[ModelId, "Reuse"])

    @classmethod
    def of(cls, window_s: int, found: Counts) -> "Reuse":
        def reuse(models: Collection[ModelId], by_model: Mapping[ModelId, Reuse]) -> Reuse:
            num_prompt = sum(found.looked_up[model] for model in models)
            given = {tier: sum(found.tokens[model, tier] for model in models) for tier in TIER_NAMES}
            rates = {tier: num / num_prompt for tier, num in given.items()} if num_prompt else None
            return cls(window_s, sum(found.lookups[model] for model in models), num_prompt, rates, by_model)

        return reuse(found.lookups, {model: reuse([model], {}) for model in sorted(found.lookups)})


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Slices of `slice_s`, oldest first; the last one is incomplete. `start_ns`: the start of the first one, on the
    monotonic clock. `tokens`: by origin."""

    slice_s: int
    start_ns: int
    tokens: Mapping[str, Sequence[int]]
    time_to_first_token: Sequence[Latency]
    inter_token: Sequence[Latency]


SLICE_S, NUM_SLICES = 5, 180
LATENCY_WINDOW_S = 300
RATE_WINDOW_S = 15
REUSE_WINDOWS_S = (60, 300, 900)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReading:
    """The figures at one time. `tokens_per_s`: by origin, over RATE_WINDOW_S; the latencies over LATENCY_WINDOW_S."""

    at_ns: int
    time_to_first_token: Latency
    inter_token: Latency
    tokens_per_s: Mapping[str, float]
    reuse: Sequence[Reuse]
    history: History

    @classmethod
    def of(cls, starts: Sequence[Counts], now_ns: int) -> "LiveReading":
        """Returns the figures of the last NUM_SLICES slices of SLICE_S, whose counts `starts` has as Readings gives
        them. The first call takes some milliseconds, later ones only for what is new."""

        def last(window_s: int) -> Counts:
            return starts[-1].since(starts[-1 - window_s // SLICE_S])

        slice_ns = SLICE_S * 10**9
        latencies, rated = last(LATENCY_WINDOW_S), last(RATE_WINDOW_S)
        rated_s = RATE_WINDOW_S - SLICE_S + now_ns % slice_ns / 1e9  # the last slice is not over
        tokens, first_token, inter_token = zip(*starmap(_slice, pairwise(starts)), strict=True)
        return cls(
            at_ns=now_ns,
            time_to_first_token=Latency.of(latencies.first_token),
            inter_token=Latency.of(latencies.inter_token),
            tokens_per_s={origin: num / rated_s for origin, num in rated.by_origin().items()},
            reuse=[Reuse.of(window_s, last(window_s)) for window_s in REUSE_WINDOWS_S],
            history=History(
                slice_s=SLICE_S,
                start_ns=(now_ns // slice_ns + 1 - NUM_SLICES) * slice_ns,
                tokens={origin: [one[origin] for one in tokens] for origin in ORIGINS},
                time_to_first_token=first_token,
                inter_token=inter_token,
            ),
        )


@lru_cache(maxsize=2 * NUM_SLICES)
def _slice(before: Counts, after: Counts) -> tuple[Mapping[str, int], Latency, Latency]:
    """The tokens by origin and the latencies between two readings, which do not change any more."""
    found = after.since(before)
    return found.by_origin(), Latency.of(found.first_token), Latency.of(found.inter_token)
