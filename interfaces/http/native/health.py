"""Routes for operators: /health/live (the process answers), /health/ready (a model is served, the engine makes
progress, and the server does not drain), /health/engine (its state), /get_load (for routers), /version, and /metrics in
Prometheus' text format, or in OpenMetrics where the scraper asks for that. Where keys are needed, scrapers need one of
an admin."""

from collections.abc import Callable
from typing import Any, Literal

from litestar import get
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Response
from msgspec import Struct

from application.use_cases.check_health import CheckHealth, Health
from interfaces.http.incoming.request_context import admins_only, context_of

_CHARSET = "; charset=utf-8"
"""Litestar adds it to text by itself."""


class LiveBody(Struct):
    status: Literal["ok"] = "ok"


class LoadingBody(Struct):
    """The load under way. `model`: null for clients that are no admins. `phase`: `hashing` (files are read for their
    digest), `reading` (weights), `measuring` or `loading`. `fraction`: of the phase that is done, 0 to 1, and
    `seconds_left`: until its end by its rate so far; null while they are unknown."""

    model: str | None
    phase: Literal["hashing", "reading", "measuring", "loading"]
    fraction: float | None
    seconds_left: float | None


def _loading_body(health: Health, *, is_admin: bool) -> LoadingBody | None:
    loading, left_s = health.loading, health.loading_left_s
    if loading is None:
        return None
    fraction = None if loading.fraction is None else round(loading.fraction, 3)
    return LoadingBody(
        loading.id if is_admin else None,
        loading.phase.value,
        fraction,
        None if left_s is None else round(left_s, 1),
    )


class ReadyBody(Struct):
    """The readiness of the server. `problem` is empty when ready. `waiting` and `running` count requests, `waiting_for`
    those that wait, by reason: `model`, `place` or `memory`. `models`: those loaded; null for clients that are no
    admins, which do not get the problem in full either. `loading`: null where nothing is loaded now."""

    status: Literal["ready", "not ready"]
    problem: str
    waiting: int
    running: int
    waiting_for: dict[str, int]
    models: list[str] | None
    loading: LoadingBody | None = None


class LoadBody(Struct):
    """The load of the server, by sglang's and vLLM's routers' name: requests that wait or run."""

    load: int


class VersionBody(Struct):
    version: str


def health_routes(check_health: CheckHealth, version: str) -> list[HTTPRouteHandler]:
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
        is_admin = context_of(request.scope).client.admin
        body = ReadyBody(
            "ready" if health.is_ready else "not ready",
            health.problem if is_admin else health.problem.partition(":")[0],
            health.num_waiting,
            health.num_running,
            dict(health.waiting_for),
            list(health.models) if is_admin else None,
            _loading_body(health, is_admin=is_admin),
        )
        return Response(body, status_code=200 if health.is_ready else 503)

    @get(
        "/health/engine",
        sync_to_thread=False,
        responses={503: ResponseSpec(EngineBody, description="Stuck, or not running", generate_examples=False)},
    )
    def engine(request: Request[Any, Any, Any]) -> Response[EngineBody]:
        body = engine_body(check_health(), is_admin=context_of(request.scope).client.admin)
        return Response(body, status_code=200 if body.status == "ok" else 503)

    @get("/get_load", sync_to_thread=False)
    def load() -> LoadBody:
        health = check_health()
        return LoadBody(health.num_waiting + health.num_running)

    @get("/version", sync_to_thread=False)
    def show_version() -> VersionBody:
        return VersionBody(version)

    return [live, ready, engine, load, show_version]


class OutstandingBody(Struct):
    """Choices that wait and run, and calls such as a load."""

    waiting: int
    running: int
    calls: int


class EngineBody(Struct):
    """The state of the engine. `last_step_age_s`: since a step, a call or a piece of a load ended, against what is
    `outstanding`. `doing`: what the engine does now, for how long. `stuck_in`: what does not end, an activity,
    `waiting` or `ended`; null when nothing is stuck. `requests`: those that are stuck; `last_loss`: why the engine
    before this one was lost; both null for clients that are no admins. `event_loop_lag_s`: how late the event loop
    was at the last check, once a second. `loading`: null where nothing is loaded now."""

    status: Literal["ok", "stuck", "not running"]
    last_step_age_s: float
    outstanding: OutstandingBody
    doing: str
    doing_s: float
    stuck_in: str | None
    stuck_s: float
    requests: list[str] | None
    event_loop_lag_s: float
    last_loss: str | None = None
    loading: LoadingBody | None = None


def engine_body(health: Health, *, is_admin: bool) -> EngineBody:
    """The state of the engine as a body. `is_admin`: it names the requests that are stuck."""
    found = health.engine
    return EngineBody(
        status="stuck" if found.is_stuck else "ok" if health.is_running else "not running",
        last_step_age_s=round(found.step_age_s, 3),
        outstanding=OutstandingBody(found.num_waiting, found.num_running, found.num_calls),
        doing=health.doing,
        doing_s=round(health.doing_s, 3),
        stuck_in=found.stuck_in or None,
        stuck_s=round(health.stuck_s, 3),
        requests=list(found.request_ids) if is_admin else None,
        last_loss=health.last_loss or None if is_admin else None,
        event_loop_lag_s=round(health.loop_lag_s, 3),
        loading=_loading_body(health, is_admin=is_admin),
    )


def metrics_route(metrics_text: Callable[[str], tuple[bytes, str]]) -> HTTPRouteHandler:
    @get("/metrics", guards=[admins_only], sync_to_thread=True, include_in_schema=False)
    def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        body, content_type = metrics_text(request.headers.get("accept", ""))
        media_type = content_type.removesuffix(_CHARSET) if content_type.startswith("text/") else content_type
        return Response(body, media_type=media_type, headers={"vary": "accept"})

    return metrics
