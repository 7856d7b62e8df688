"""POST and DELETE /admin/api/drain: routers send the server no more requests, and again some. For admins."""

from litestar import delete
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from interfaces.http.answering.answering import json_route
from interfaces.http.answering.documented import errors
from interfaces.http.incoming.request_context import RequestContext, admins_only, changes_allowed
from interfaces.http.native.requests import PREFIX
from interfaces.http.services import Services


class DrainOrder(Struct, forbid_unknown_fields=True):
    """An empty object."""


class DrainBody(Struct, tag_field="object", tag="cairn.drain"):
    """The state of a drain: while `draining`, /health/ready is 503 and requests that arrive are answered. `waiting` and
    `running` count requests: with neither, and routers that have noticed, it can be stopped. A server that was sent
    SIGTERM drains until it ends."""

    draining: bool
    waiting: int
    running: int


def drain_routes(services: Services, may_change: bool) -> list[HTTPRouteHandler]:
    """The handlers. Without `may_change` they refuse."""
    check_health, guards = services.check_health, [admins_only, changes_allowed(may_change)]

    def state() -> DrainBody:
        health = check_health()
        return DrainBody(check_health.draining.is_on, health.num_waiting, health.num_running)

    @json_route(PREFIX + "/drain", "beginDrain", DrainOrder, guards=guards, is_cancelled=False)
    async def begin_drain(_body: DrainOrder, _context: RequestContext) -> DrainBody:
        check_health.draining.begin()
        return state()

    @delete(PREFIX + "/drain", guards=guards, status_code=200, operation_id="endDrain", responses=errors(401))
    async def end_drain() -> DrainBody:
        check_health.draining.end()
        return state()

    return [begin_drain, end_drain]
