"""GET and POST /admin/api/settings/keys, DELETE /admin/api/settings/keys/{name}: the keys of clients. For admins."""

from typing import Any

from litestar import Request, delete
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from domain.client import Client
from domain.priority import named_priority
from interfaces.http.answering.answering import json_route
from interfaces.http.answering.documented import errors
from interfaces.http.incoming.request_context import RequestContext, admins_only, changes_allowed, context_of
from interfaces.http.native.requests import PREFIX, admin_get
from interfaces.http.services import Services


class KeyBody(Struct):
    """A key without its value. Null: no limit; `mcp`: no tool server, or all for an admin. `own`: the key of this
    request. `shared`: it shares prefixes with all other keys of which this is true."""

    name: str
    admin: bool
    requests_per_minute: int | None
    max_concurrent: int | None
    models: list[str] | None
    priority: str
    shared: bool
    own: bool
    mcp: list[str] | None = None


class KeyListBody(Struct):
    """`may_change`: false where the settings forbid changes over HTTP."""

    data: list[KeyBody]
    may_change: bool


class KeyOrder(Struct, forbid_unknown_fields=True):
    """A new key, with the fields of the key file. Null: no limit; for `mcp`: none, or all for an admin."""

    name: str
    admin: bool = False
    requests_per_minute: int | None = None
    max_concurrent: int | None = None
    models: list[str] | None = None
    priority: str = "interactive"
    mcp: list[str] | None = None


class NewKeyBody(Struct):
    """`key`: its value, which is not told again."""

    name: str
    key: str


class RevokedBody(Struct):
    name: str


def key_routes(services: Services, may_change: bool) -> list[HTTPRouteHandler]:
    """The handlers. Without `may_change` only the first is not refused."""
    keys, guards = services.client_keys, [admins_only, changes_allowed(may_change)]

    @admin_get("/settings/keys", "listKeys")
    async def list_keys(request: Request[Any, Any, Any]) -> KeyListBody:
        own = context_of(request.scope).client.name
        return KeyListBody([_key_body(one, own) for one in keys.listed()], may_change)

    @json_route(PREFIX + "/settings/keys", "addKey", KeyOrder, guards=guards, is_cancelled=False)
    async def add(body: KeyOrder, context: RequestContext) -> NewKeyBody:
        models = None if body.models is None else frozenset(body.models)
        limits = body.requests_per_minute, body.max_concurrent, models, named_priority(body.priority)
        servers = None if body.mcp is None else frozenset(body.mcp)
        client = Client(body.name, "", "", *limits, body.admin, servers)
        return NewKeyBody(body.name, await keys.add(client, context.client))

    @delete(
        PREFIX + "/settings/keys/{name:str}",
        guards=guards,
        status_code=200,
        operation_id="revokeKey",
        responses=errors(400, 401),
    )
    async def revoke(name: str, request: Request[Any, Any, Any]) -> RevokedBody:
        await keys.revoke(name, context_of(request.scope).client)
        return RevokedBody(name)

    return [list_keys, add, revoke]


def _key_body(client: Client, own: str) -> KeyBody:
    return KeyBody(
        client.name,
        client.admin,
        client.requests_per_minute,
        client.max_concurrent,
        None if client.models is None else sorted(client.models),
        client.priority.value,
        not client.salt,
        client.name == own,
        None if client.mcp is None else sorted(client.mcp),
    )
