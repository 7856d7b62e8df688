"""GET /admin/api/requests, GET /admin/api/requests/{id}, POST /admin/api/requests/{id}/cancel. For admins."""

import asyncio
from typing import Annotated, Any

from litestar import post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from msgspec import Struct

from application.services.request_timelines import MAX_ENDED
from application.use_cases.watch_requests import RequestsSeen
from domain.ids import RequestId
from domain.request.document import Owner
from interfaces.http.admin.reading import PREFIX, admin_get
from interfaces.http.admin.request_body import PreparingBody, RequestBody, preparing_body, request_body
from interfaces.http.answering.documented import errors
from interfaces.http.incoming.request_context import admins_only, context_of
from interfaces.http.services import Services

DEFAULT_ENDED = 50


class RequestListBody(Struct, tag_field="object", tag="cairn.requests"):
    """`open`: the longest open first, at most 200 of `open_count`, without their explanations; `ended`: the last first,
    without any text.
    `preparing`: those that are not in the queue yet, the longest waiting first, at most 200 of `preparing_count`."""

    open_count: int
    open: list[RequestBody]
    ended: list[RequestBody]
    preparing_count: int
    preparing: list[PreparingBody]


class CancelledBody(Struct, tag_field="object", tag="cairn.cancelled"):
    """It ends within one engine step, and its client is told so."""

    id: str


def request_routes(services: Services, error_type: type[Struct]) -> list[HTTPRouteHandler]:
    """The handlers, bound to what they need."""
    watch, clock = services.admin.requests, services.clock

    @admin_get("/requests", "listRequests", error_type, 400)
    async def list_requests(
        ended: Annotated[int, Parameter(ge=0, le=MAX_ENDED, description="How many that ended.")] = DEFAULT_ENDED,
    ) -> RequestListBody:
        now_ns, found = clock.now_ns(), watch.all(ended)
        return await asyncio.to_thread(_list, found, now_ns, clock.unix_ns() - now_ns)  # many take milliseconds

    @admin_get("/requests/{request_id:str}", "readRequest", error_type, 404)
    async def read_request(request_id: str, request: Request[Any, Any, Any]) -> RequestBody:
        context = context_of(request.scope)
        viewer = Owner.of("", context.client.tenant(context.salt()), context.client.name)
        found = await watch.one(RequestId(request_id), viewer)
        offset_ns = clock.unix_ns() - clock.now_ns()
        return request_body(found.seen, found.explanation, clock.now_ns(), offset_ns, shows_text=found.shows_text)

    @post(
        f"{PREFIX}/requests/{{request_id:str}}/cancel",
        guards=[admins_only],
        status_code=200,
        operation_id="cancelRequest",
        responses=errors(error_type, 401, 404, 415),
    )
    async def cancel_request(request_id: str) -> CancelledBody:
        watch.cancel(RequestId(request_id))
        return CancelledBody(request_id)

    return [list_requests, read_request, cancel_request]


def _list(found: RequestsSeen, now_ns: int, unix_offset_ns: int) -> RequestListBody:
    # Asked for again and again: what nobody reads in a list is not in it.
    opened = [request_body(one, None, now_ns, unix_offset_ns) for one in found.open]
    ended = [request_body(one, one.without_tokens(), now_ns, unix_offset_ns) for one in found.ended]
    preparing = [preparing_body(one, now_ns) for one in found.preparing]
    return RequestListBody(found.num_open, opened, ended, found.num_preparing, preparing)
