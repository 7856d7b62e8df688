"""The web application: routes, errors, authentication, limits and the guard around the use cases."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from litestar import Litestar, Router
from litestar.config.cors import CORSConfig
from litestar.connection import Request
from litestar.datastructures import State
from litestar.exceptions import NotFoundException
from litestar.handlers import BaseRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.response import Response
from litestar.types import Middleware

from application.events import FaultObserved, HttpRefused
from application.settings import ServerSettings
from domain.client import KeyRing
from domain.errors import DomainError
from domain.printable import printable
from interfaces.http.answering.answering import operation_route
from interfaces.http.dialects import DIALECTS
from interfaces.http.errors import problem_of
from interfaces.http.fields.prompt_body import PromptBodies
from interfaces.http.front.guard import Refusals, RequestGuard
from interfaces.http.front.unprefixed import Unprefixed
from interfaces.http.incoming.request_context import (
    Authentication,
    BodiesFull,
    BodyBudget,
    add_headers,
    request_id,
)
from interfaces.http.native.admin import admin_routes
from interfaces.http.native.cache import cache_routes
from interfaces.http.native.drain import drain_routes
from interfaces.http.native.fleet import fleet_routes
from interfaces.http.native.health import health_routes, metrics_route
from interfaces.http.native.hub import hub_routes
from interfaces.http.native.keys import key_routes
from interfaces.http.native.logs import log_routes
from interfaces.http.native.mcp import mcp_routes
from interfaces.http.native.models import managed_model_routes
from interfaces.http.native.quantise import quantise_routes
from interfaces.http.native.requests import request_routes
from interfaces.http.native.settings import settings_routes
from interfaces.http.native.tokenize import tokenize_routes
from interfaces.http.pages.routes import assets, page_paths, page_routes
from interfaces.http.services import Services

_log = logging.getLogger("cairn.http")

_DEFAULT_MAX_BODY_BYTES = 32 * 2**20

_REFUSED = frozenset({401, 403, 429})
"""Statuses of refused clients, which are counted by reason."""

_READABLE_HEADERS = [
    "x-cairn-cache",
    "x-cairn-ignored",
    "x-request-id",
    "traceresponse",
    "retry-after",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
]
"""Headers of an answer that pages of other origins may read."""


def create_app(
    services: Services,
    settings: ServerSettings,
    *,
    keys: KeyRing,
    version: str = "0",
    middleware: Sequence[Middleware] = (),
    lifespan: Sequence[Callable[[Litestar], AbstractAsyncContextManager[None]]] = (),
) -> Litestar:
    """Returns the application. `middleware` goes around authentication (telemetry does).
    `lifespan`: contexts that last as long as the application."""
    refusals = Refusals(
        DIALECTS, lambda code, detail: services.events.emit(HttpRefused(code, detail, services.clock.now_ns()))
    )
    pages = assets()
    max_body_bytes = settings.max_body.num_bytes or _DEFAULT_MAX_BODY_BYTES
    bodies = BodyBudget(max_body_bytes)
    prompts = PromptBodies([operation for dialect in DIALECTS for operation in dialect.operations])
    app = Litestar(
        route_handlers=[
            *_dialect_routes(services, settings.keepalive_s),
            *cache_routes(services, prompts),
            *tokenize_routes(services, prompts),
            *managed_model_routes(services, settings.admin),
            *hub_routes(services.hub, settings.admin),
            *quantise_routes(services.quantise, settings.admin),
            *admin_routes(services, version),
            *settings_routes(services, settings.admin),
            *key_routes(services, settings.admin),
            *drain_routes(services, settings.admin),
            *request_routes(services),
            *log_routes(services.log),
            *mcp_routes(services),
            *fleet_routes(services),
            *health_routes(services.check_health, version),
            *page_routes(pages),
            *([metrics_route(services.metrics_text)] if services.metrics_text is not None else ()),
        ],
        lifespan=list(lifespan),
        middleware=[*middleware, Authentication(services, keys, bodies, page_paths(pages))],
        exception_handlers={Exception: _error_handler(services, refusals)},
        before_send=[add_headers(services.ids)],
        request_max_body_size=max_body_bytes,
        openapi_config=OpenAPIConfig(
            title="Cairn",
            version=version,
            openapi_router=Router("/schema", route_handlers=[], include_in_schema=False, after_request=_refuse_unknown),
            render_plugins=[JsonRenderPlugin()],  # every other plugin fetches scripts from the internet
        ),
        cors_config=_cors(settings) if settings.cors_origins else None,
        logging_config=None,
        state=State({"refusals": refusals, "bodies": bodies}),  # for HttpServer, whose connections refuse too
    )
    app.asgi_handler = Unprefixed(RequestGuard(app.asgi_handler, settings, refusals))
    return app


def _dialect_routes(services: Services, keepalive_s: float) -> Iterator[BaseRouteHandler]:
    for dialect in DIALECTS:
        for operation in dialect.operations:
            yield operation_route(operation, dialect.error_type, keepalive_s)
        yield from dialect.routes(services)
        yield from dialect.sockets(services, keepalive_s)


def _cors(settings: ServerSettings) -> CORSConfig:
    """Returns the CORS configuration. Pages send their key as a header, never as a cookie, so no credentials are
    allowed."""
    return CORSConfig(
        allow_origins=[origin.lower() for origin in settings.cors_origins], expose_headers=_READABLE_HEADERS
    )


async def _refuse_unknown(response: Response[Any]) -> Response[Any]:
    """Refuses unknown paths below the OpenAPI document's, for which Litestar would answer with HTML."""
    if response.status_code == 404:
        raise NotFoundException
    return response


def _error_handler(
    services: Services, refusals: Refusals
) -> Callable[[Request[Any, Any, Any], Exception], Response[Any]]:
    def handle(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        problem = problem_of(error)
        if problem.status in (404, 405) and not isinstance(error, DomainError):
            problem = replace(problem, message=f"{problem.message}: {request.method} {printable(request.url.path)}")
        if problem.status in _REFUSED or isinstance(error, BodiesFull):
            refusals.note(problem)
        if problem.is_defect:
            where = f"http {request.method} {printable(request.url.path)}"
            _log.error("%s failed, request %s", where, request_id(request.scope, services.ids), exc_info=error)
            services.events.emit(FaultObserved("http", f"{where}: {type(error).__name__}", services.clock.now_ns()))
        body = DIALECTS.of(request.scope["path"]).error_body(problem)
        headers = dict(problem.headers)
        return Response(body, status_code=problem.status, headers=headers, media_type="application/json")

    return handle
