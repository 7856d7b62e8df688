"""GET /health/live (the process answers), /health/ready (a model is served, and the engine moves), /health/engine (how
well it moves), /version."""

from typing import Any, Literal

from litestar import get
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Response
from msgspec import Struct

from application.use_cases.check_health import CheckHealth
from interfaces.http.engine_body import EngineBody, engine_body
from interfaces.http.visit import visit_of


class LiveBody(Struct):
    status: Literal["ok"] = "ok"


class ReadyBody(Struct):
    """`problem` is empty when ready. `waiting` and `running` count requests, `waiting_for` those that wait, by reason:
    `model`, `place` or `memory`. `models`: those loaded; null for who is no admin, and is not told what is wrong in
    full either."""

    status: Literal["ready", "not ready"]
    problem: str
    waiting: int
    running: int
    waiting_for: dict[str, int]
    models: list[str] | None


class VersionBody(Struct):
    version: str


def health_routes(check_health: CheckHealth, version: str) -> list[HTTPRouteHandler]:
    """The handlers, bound to what they need."""

    @get(["/health", "/health/live"], sync_to_thread=False)
    def live() -> LiveBody:
        return LiveBody()

    @get(
        "/health/ready",
        sync_to_thread=False,
        responses={503: ResponseSpec(ReadyBody, description="Not ready", generate_examples=False)},
    )
    def ready(request: Request[Any, Any, Any]) -> Response[ReadyBody]:
        health = check_health()
        tells_all = visit_of(request.scope).client.is_admin
        body = ReadyBody(
            "ready" if health.is_ready else "not ready",
            health.problem if tells_all else health.problem.partition(":")[0],
            health.num_waiting,
            health.num_running,
            dict(health.waiting_for),
            list(health.models) if tells_all else None,
        )
        return Response(body, status_code=200 if health.is_ready else 503)

    @get(
        "/health/engine",
        sync_to_thread=False,
        responses={503: ResponseSpec(EngineBody, description="Stuck, or not running", generate_examples=False)},
    )
    def engine(request: Request[Any, Any, Any]) -> Response[EngineBody]:
        body = engine_body(check_health(), tells_all=visit_of(request.scope).client.is_admin)
        return Response(body, status_code=200 if body.status == "ok" else 503)

    @get("/version", sync_to_thread=False)
    def show_version() -> VersionBody:
        return VersionBody(version)

    return [live, ready, engine, show_version]


__all__ = ("health_routes",)
