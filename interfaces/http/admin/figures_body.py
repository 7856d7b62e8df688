"""The live figures as JSON."""

from collections.abc import Sequence

from msgspec import Struct

from domain.health.live_reading import History, Latency, LiveReading, Reuse


class LatencyBody(Struct):
    """Seconds over `window_s`; null where nothing was measured. `count`: measurements. Within 2 %."""

    window_s: int
    count: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None


class ReuseBody(Struct):
    """Of prompts looked up within `window_s`. `hit_rate`: the share of their tokens by tier (`live`, `hot`, `store`), 0
    to 1; null ("n/a") when nothing was asked, or only of models whose prompts are never reused."""

    window_s: int
    lookups: int
    prompt_tokens: int
    hit_rate: dict[str, float] | None


class HistoryBody(Struct):
    """The last quarter of an hour in slices of `slice_s` seconds, oldest first, all lists equally long; the last slice
    is not over. `start_unix_s`: when the first one began. `tokens`: by origin. Latencies: medians and 99th percentiles
    of each slice, null where nothing was measured."""

    slice_s: int
    start_unix_s: float
    tokens: dict[str, list[int]]
    ttft_p50_s: list[float | None]
    ttft_p99_s: list[float | None]
    itl_p50_s: list[float | None]
    itl_p99_s: list[float | None]


class FiguresBody(Struct):
    """`ttft`: from the queue to the first token. `itl`: between a choice's tokens. `tokens_per_s`: over the last 15 s,
    by origin: `computed`, `live`, `hot` and `store` (a prompt's), `recomputed` (after a preemption), `output`."""

    ttft: LatencyBody
    itl: LatencyBody
    tokens_per_s: dict[str, float]
    reuse: list[ReuseBody]
    history: HistoryBody


def figures_body(reading: LiveReading, latency_window_s: int, unix_offset_ns: int) -> FiguresBody:
    """`unix_offset_ns`: from the monotonic clock to Unix time."""
    return FiguresBody(
        _latency(reading.time_to_first_token, latency_window_s),
        _latency(reading.inter_token, latency_window_s),
        {origin: round(rate, 3) for origin, rate in reading.tokens_per_s.items()},
        [_reuse(one) for one in reading.reuse],
        _history(reading.history, unix_offset_ns),
    )


def _latency(found: Latency, window_s: int) -> LatencyBody:
    return LatencyBody(window_s, found.num, _short(found.p50_s), _short(found.p90_s), _short(found.p99_s))


def _reuse(found: Reuse) -> ReuseBody:
    rate = dict(found.hit_rate) if found.hit_rate is not None else None
    return ReuseBody(found.window_s, found.num_lookups, found.num_prompt_tokens, rate)


def _history(found: History, unix_offset_ns: int) -> HistoryBody:
    return HistoryBody(
        found.slice_s,
        (found.start_ns + unix_offset_ns) / 1e9,
        {origin: list(counts) for origin, counts in found.tokens.items()},
        _medians(found.time_to_first_token),
        _tails(found.time_to_first_token),
        _medians(found.inter_token),
        _tails(found.inter_token),
    )


def _medians(slices: Sequence[Latency]) -> list[float | None]:
    return [_short(one.p50_s) for one in slices]


def _tails(slices: Sequence[Latency]) -> list[float | None]:
    return [_short(one.p99_s) for one in slices]


def _short(seconds: float | None) -> float | None:
    """To the microsecond: more digits would be most of the answer."""
    return None if seconds is None else round(seconds, 6)
