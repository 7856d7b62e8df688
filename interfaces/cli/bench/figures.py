"""Figures of one scenario, round by round, and the few statistics that a table shows of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from interfaces.cli.bench.timeline import Timeline


@dataclass
class Scenario:
    """Lists have an entry a round. `ttft_s`: what the scenario says it times. `cached`: None where the server did not
    tell. `note`: why rounds are missing; empty when none are."""

    name: str
    ttft_s: list[float] = field(default_factory=list[float])
    prompt_tokens: list[int | None] = field(default_factory=list[int | None])
    cached_tokens: list[int | None] = field(default_factory=list[int | None])
    note: str = ""

    def add(self, *timelines: Timeline) -> None:
        """A round: of several at once, the time until the last of them has its first token, and their tokens' sum."""
        sent_s = min(timeline.sent_s for timeline in timelines)
        self.ttft_s.append(max(timeline.first_token_s for timeline in timelines) - sent_s)
        self.prompt_tokens.append(_sum([timeline.num_prompt for timeline in timelines]))
        self.cached_tokens.append(_sum([timeline.num_cached for timeline in timelines]))


@dataclass(frozen=True, slots=True)
class Streams:
    """Answers decoded at once. `rate`: tokens a second over all of them while all run; None: they hardly overlapped.
    `num_tokens`: put out in all. `tokens_a_chunk`: 1 where latencies between chunks are those between tokens. `note`:
    why there are no figures."""

    num_streams: int
    rate: float | None = None
    ttft_s: tuple[float, ...] = ()
    gaps_s: tuple[float, ...] = ()
    num_tokens: int = 0
    tokens_a_chunk: float = 1.0
    note: str = ""


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of them do not exceed (nearest rank); None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def ratio_to(cold: Sequence[float], values: Sequence[float]) -> float | None:
    """Median of the ratios, round by round; None where no round has both."""
    return percentile([value / base for value, base in zip(values, cold, strict=False) if base > 0], 0.5)


def _sum(counts: Sequence[int | None]) -> int | None:
    told = [count for count in counts if count is not None]
    return sum(told) if len(told) == len(counts) else None
