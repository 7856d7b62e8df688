"""What the last minutes were like: how long clients waited, where tokens came from, what was reused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from domain.health.latency_sketch import LatencySketch
from domain.prefix.explanation import TIER_NAMES

ORIGINS = ("computed", *TIER_NAMES, "recomputed", "output")
"""Of tokens: a prompt's are computed or come from a tier; those computed again after a preemption; those generated."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds; None where nothing was measured. `num`: measurements."""

    num: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None

    @classmethod
    def of(cls, sketch: LatencySketch) -> "Latency":
        return cls(sketch.num, *sketch.quantiles(0.5, 0.9, 0.99))


@dataclass(frozen=True, slots=True)
class Reuse:
    """Of the prompts looked up within `window_s`: the share of their tokens that each tier gave; None: nothing was
    looked up that could have reused anything."""

    window_s: int
    num_lookups: int
    num_prompt_tokens: int
    hit_rate: Mapping[str, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Slices of `slice_s`, oldest first; the last one is not over. `start_ns`: when the first began, by the monotonic
    clock. `tokens`: by origin."""

    slice_s: int
    start_ns: int
    tokens: Mapping[str, Sequence[int]]
    time_to_first_token: Sequence[Latency]
    inter_token: Sequence[Latency]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReading:
    """`tokens_per_s`: by origin, over RATE_WINDOW_S; the latencies over LATENCY_WINDOW_S. `inter_token`: between one
    token of a choice and its next, as the engine hands them over."""

    at_ns: int
    time_to_first_token: Latency
    inter_token: Latency
    tokens_per_s: Mapping[str, float]
    reuse: Sequence[Reuse]
    history: History
