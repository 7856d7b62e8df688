"""POST /v1/cache/clear: remove for good what is kept of everything, of a model, of a salt. For admins.

The salt is in the body, because addresses end up in logs. It is read as in the admin's own requests: that of its key
enters too.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from litestar import post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.ports.cache_stats import Cleared
from application.services.documents import Documents
from interfaces.http.answering.documented import errors
from interfaces.http.cache.bodies import ClearedBody
from interfaces.http.incoming.json_body import json_body
from interfaces.http.incoming.visit import admins_only, visit_of


class ClearRequest(Struct, forbid_unknown_fields=True):
    """Null and absent mean any; an unknown field is refused, because one letter must not clear everything. `model`: its
    name, or the first digits of a namespace. `salt`: a `cache_salt`; empty for requests that name none."""

    model: str | None = None
    salt: str | None = None


def clear_route(
    clear_cache: Callable[[str | None, str | None], Awaitable[Cleared]], documents: Documents, error_type: type[Struct]
) -> HTTPRouteHandler:
    """The handler, bound to what it needs."""

    @post(
        "/v1/cache/clear",
        guards=[admins_only],
        dto=json_body(ClearRequest),
        return_dto=None,
        status_code=200,
        operation_id="clearCache",
        responses=errors(error_type, 400, 401, 413, 503),
    )
    async def clear(data: ClearRequest, request: Request[Any, Any, Any]) -> ClearedBody:
        salt = None if data.salt is None else visit_of(request.scope).client.tenant(data.salt)
        cleared = await clear_cache(data.model, salt)
        gone = await documents.erase(data.model, salt)
        problems = "; ".join(problem for problem in (cleared.problem, gone.problem) if problem)
        return ClearedBody(
            cleared.num_hot,
            cleared.num_stored,
            cleared.stored_bytes,
            gone.num_documents,
            gone.num_bytes,
            problems or None,
        )

    return clear
