"""GET /admin/api/overview: all that a live page needs, in one answer of bounded size. For admins."""

from collections import Counter
from typing import Literal

from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.use_cases.check_health import Health
from domain.health.live_windows import LATENCY_WINDOW_S
from interfaces.http.admin.figures_body import FiguresBody, figures_body
from interfaces.http.admin.reading import admin_get
from interfaces.http.operations.health import EngineBody, engine_body
from interfaces.http.operations.memory_body import MemoryBody, memory_body
from interfaces.http.operations.tier_bodies import TiersBody, tiers_body
from interfaces.http.services import AdminServices, Services


class HealthBody(Struct):
    """`problem` is empty when ready. `models`: those loaded."""

    status: Literal["ready", "not ready"]
    problem: str
    models: list[str]
    engine: EngineBody


class QueueCountsBody(Struct):
    """Choices of requests. `waiting_for`: how many wait for what: `model`, `place`, `memory`. `queue_limit`: more than
    so many that wait are refused."""

    waiting: int
    running: int
    waiting_for: dict[str, int]
    queue_limit: int


class OverviewBody(Struct, tag_field="object", tag="cairn.overview"):
    """`event_failures`: events that the figures and the requests could not take, by type: a defect, and empty without
    one. `memory`: null where the engine keeps no ledger. `tiers`: null until they were read once; `tiers_age_s`: how
    long ago that was, more than a few seconds while the store does not answer."""

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


def overview_route(services: Services, version: str, error_type: type[Struct]) -> HTTPRouteHandler:
    """The handler, bound to what it needs; the server is up from now on."""
    admin, clock = services.admin, services.clock
    started_ns = clock.now_ns()

    @admin_get("/overview", "readOverview", error_type)
    async def read_overview() -> OverviewBody:
        reading = await admin.readings.latest()
        health, now_ns = services.check_health(), clock.now_ns()
        offset_ns = clock.unix_ns() - now_ns
        return OverviewBody(
            version=version,
            now_unix_s=(now_ns + offset_ns) / 1e9,
            uptime_s=(now_ns - started_ns) / 1e9,
            health=_health(health),
            requests=_counts(health, admin.requests.max_queue),
            figures=figures_body(admin.figures.read(), LATENCY_WINDOW_S, offset_ns),
            event_failures=_failures(admin),
            memory=memory_body(services.engine_status()) if services.engine_status is not None else None,
            tiers=tiers_body(reading.stats, reading.documents) if reading is not None else None,
            tiers_age_s=(now_ns - reading.at_ns) / 1e9 if reading is not None else None,
        )

    return read_overview


def _health(health: Health) -> HealthBody:
    status: Literal["ready", "not ready"] = "ready" if health.is_ready else "not ready"
    return HealthBody(status, health.problem, list(health.models), engine_body(health, tells_all=True))


def _failures(admin: AdminServices) -> dict[str, int]:
    return dict(Counter(admin.figures.failures()) + Counter(admin.requests.failures()))


def _counts(health: Health, max_queue: int) -> QueueCountsBody:
    return QueueCountsBody(health.num_waiting, health.num_running, dict(health.waiting_for), max_queue)
