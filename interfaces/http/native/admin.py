"""GET /admin/api/overview: a live page's figures. For admins."""

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from domain.health.live_figures import LATENCY_WINDOW_S, Latency, LiveReading, Reuse
from domain.health.seconds_saved import Saved
from interfaces.http.native.bodies import MemoryBody, TiersBody, memory_body, tiers_body
from interfaces.http.native.health import EngineBody, engine_body
from interfaces.http.native.requests import admin_get
from interfaces.http.services import Services


class LatencyBody(Struct):
    """Latencies in seconds over `window_s`; null where nothing was measured. `count`: measurements. Within 2 %."""

    window_s: int
    count: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None


class ModelReuseBody(Struct):
    """The reuse of one model's prompts in a window; fields as in ReuseBody."""

    model: str
    lookups: int
    prompt_tokens: int
    hit_rate: Mapping[str, float] | None


class ReuseBody(Struct):
    """The reuse of prompts looked up within `window_s`. `hit_rate`: the share of their tokens by tier (`live`, `hot`,
    `store`, `shared`), 0 to 1; null ("n/a") without any lookup, or only of models whose prompts are never reused.
    `by_model`: the same of each model that had such a lookup."""

    window_s: int
    lookups: int
    prompt_tokens: int
    hit_rate: Mapping[str, float] | None
    by_model: list[ModelReuseBody] = []


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


class SavedBody(Struct):
    """The seconds that reuse saved, by tier: computing the reused tokens of ended requests, by the measured pace of
    their model and depth, less restoring them; less than zero where computing is faster. `last_hour_s`: to the minute.
    `unpriced_tokens`: reused tokens that count for nothing, since the start: their model had no measured pace."""

    since_start_s: dict[str, float]
    last_hour_s: dict[str, float]
    unpriced_tokens: int


class FiguresBody(Struct):
    """The live figures. `ttft`: from the queue to the first token. `itl`: between a choice's tokens. `tokens_per_s`:
    over the last 15 s, by origin: `computed`, `live`, `hot`, `store` and `shared` (a prompt's), `recomputed` (after a
    preemption), `output`. `saved`: null from a server that does not measure it."""

    ttft: LatencyBody
    itl: LatencyBody
    tokens_per_s: dict[str, float]
    reuse: list[ReuseBody]
    history: HistoryBody
    saved: SavedBody | None = None


def figures_body(reading: LiveReading, saved: tuple[Saved, Saved], unix_offset_ns: int) -> FiguresBody:
    """The live figures as a body. `saved`: since the start and in the last hour. `unix_offset_ns`: from the monotonic
    clock to Unix time."""
    history = reading.history
    ttfts, itls = history.time_to_first_token, history.inter_token
    return FiguresBody(
        _latency(reading.time_to_first_token),
        _latency(reading.inter_token),
        {origin: round(rate, 3) for origin, rate in reading.tokens_per_s.items()},
        [_reuse(one) for one in reading.reuse],
        HistoryBody(
            history.slice_s,
            (history.start_ns + unix_offset_ns) / 1e9,
            {origin: list(counts) for origin, counts in history.tokens.items()},
            ttft_p50_s=[_short(one.p50_s) for one in ttfts],
            ttft_p99_s=[_short(one.p99_s) for one in ttfts],
            itl_p50_s=[_short(one.p50_s) for one in itls],
            itl_p99_s=[_short(one.p99_s) for one in itls],
        ),
        SavedBody(_rounded(saved[0].seconds), _rounded(saved[1].seconds), saved[0].num_unpriced),
    )


def _reuse(found: Reuse) -> ReuseBody:
    models = found.by_model.items()
    return ReuseBody(
        found.window_s,
        found.num_lookups,
        found.num_prompt_tokens,
        found.hit_rate,
        [ModelReuseBody(id, one.num_lookups, one.num_prompt_tokens, one.hit_rate) for id, one in models],
    )


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {tier: round(value, 3) for tier, value in seconds.items()}


def _latency(found: Latency) -> LatencyBody:
    return LatencyBody(LATENCY_WINDOW_S, found.num, _short(found.p50_s), _short(found.p90_s), _short(found.p99_s))


def _short(seconds: float | None) -> float | None:
    """Rounded to the microsecond: more digits would be most of the answer."""
    return None if seconds is None else round(seconds, 6)


class HealthBody(Struct):
    """The health of the server. `problem` is empty when ready. `models`: those loaded."""

    status: Literal["ready", "not ready"]
    problem: str
    models: list[str]
    engine: EngineBody


class QueueCountsBody(Struct):
    """Choices of requests. `waiting_for`: how many wait for what: `model`, `place`, `memory`. `queue_limit`: the
    most that may wait; further ones are refused."""

    waiting: int
    running: int
    waiting_for: dict[str, int]
    queue_limit: int


class OverviewBody(Struct, tag_field="object", tag="cairn.overview"):
    """All figures of a live page. `event_failures`: events that the figures and the requests could not take, by type: a
    defect, and empty without one. `memory`: null where the engine keeps no ledger. `tiers`: null until they were read
    once; `tiers_age_s`: how long ago that was, more than a few seconds while the store does not answer."""

    version: str
    now_unix_s: float
    uptime_s: float
    health: HealthBody
    requests: QueueCountsBody
    figures: FiguresBody
    event_failures: dict[str, int]
    memory: MemoryBody | None
    tiers: TiersBody | None
    tiers_age_s: float | None


def admin_routes(services: Services, version: str) -> list[HTTPRouteHandler]:
    """The handlers. `uptime_s` counts from this call."""
    clock = services.clock
    started_ns = clock.now_ns()

    @admin_get("/overview", "readOverview")
    async def read_overview() -> OverviewBody:
        reading = await services.readings.latest()
        health, now_ns = services.check_health(), clock.now_ns()
        offset_ns = clock.unix_ns() - now_ns
        counts = (health.num_waiting, health.num_running, dict(health.waiting_for), services.requests.max_queue)
        return OverviewBody(
            version=version,
            now_unix_s=(now_ns + offset_ns) / 1e9,
            uptime_s=(now_ns - started_ns) / 1e9,
            health=HealthBody(
                "ready" if health.is_ready else "not ready",
                health.problem,
                list(health.models),
                engine_body(health, is_admin=True),
            ),
            requests=QueueCountsBody(*counts),
            figures=figures_body(services.figures.read(), services.figures.saved(), offset_ns),
            event_failures=dict(Counter(services.figures.failures()) + Counter(services.timelines.failures())),
            memory=memory_body(services.engine.status()),
            tiers=tiers_body(reading.stats, reading.documents) if reading is not None else None,
            tiers_age_s=(now_ns - reading.at_ns) / 1e9 if reading is not None else None,
        )

    return [read_overview]
