"""GET /health/live (the process answers), /health/ready (the engine makes progress), /version."""

from typing import Literal

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Response
from msgspec import Struct

from application.use_cases.check_health import CheckHealth


class LiveBody(Struct):
    status: Literal["ok"] = "ok"


class ReadyBody(Struct):
    """`problem` is empty when ready. `waiting` and `running` count requests."""

    status: Literal["ready", "not ready"]
    problem: str
    waiting: int
    running: int
    models: list[str]


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
    def ready() -> Response[ReadyBody]:
        health = check_health()
        body = ReadyBody(
            "ready" if health.is_ready else "not ready",
            health.problem,
            health.num_waiting,
            health.num_running,
            list(health.models),
        )
        return Response(body, status_code=200 if health.is_ready else 503)

    @get("/version", sync_to_thread=False)
    def show_version() -> VersionBody:
        return VersionBody(version)

    return [live, ready, show_version]


__all__ = ("health_routes",)
