"""The client of an HTTP request: found by its key, held to its limits, and the owner of what the request stores.

The key comes in `Authorization: Bearer KEY` or `x-api-key: KEY` and nowhere else. Health checks stay open, and so do
pages: they hold nothing.

A request counts once when its headers have arrived, and takes a place of `max_concurrent` then if its route generates,
so that no body is read for a client that may not generate now. Each generation beyond the first counts, and takes a
place, when it is known. `Visit.end` gives back whatever was taken, however the exchange ends.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.exceptions import NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from application.ports.clock import Clock
from application.services.documents import Documents
from domain.client import NOBODY, ClientMeter, KeyRing
from domain.errors import NotAllowed
from domain.request.document import Owner
from domain.request.request import GenerationRequest
from interfaces.http.incoming.body_limits import BodyBudget
from interfaces.http.incoming.connection_limits import is_health_check

SALT_HEADER = "x-cairn-cache-salt"
"""Requests without a body name their tenant in a header: addresses end up in logs."""

GENERATES = {"generates": True}
"""The `opt` of routes that generate, which take a place when their headers arrive."""

PIECE_BYTES = 64 << 10
"""Of an answer that are sent at once."""

MAX_OFFERED = 4
"""Keys in one request that are looked at, each compared with all: clients send one, or one in each header."""

_KEY = "cairn_visit"


class Visit:
    """One HTTP exchange of a known client. Event loop only. `client`: as it was when the exchange began. `owner`: whose
    share of `bodies` its body takes."""

    def __init__(self, meter: ClientMeter, clock: Clock, bodies: BodyBudget, owner: str) -> None:
        self.client = meter.client
        self._meter = meter
        self._clock = clock
        self._bodies = bodies
        self._owner = owner
        self._num_places = self._num_body_bytes = 0

    def arrive(self, *, generates: bool) -> None:
        """Raises LimitReached."""
        self._meter.charge(1, self._clock.now_ns())
        if generates:
            self._enter(1)

    def reading(self, receive: Receive) -> Receive:
        """`receive`, whose body takes its share of the budget until the exchange ends. It raises BodiesFull."""

        async def counted() -> Any:
            message = await receive()
            if message["type"] == "http.request" and (num_bytes := len(message.get("body", b""))):
                self.hold(num_bytes)
            return message

        return counted

    def answering(self, send: Send) -> Send:
        """`send`, which ends the exchange with its last message: the client may ask again as soon as it has that. It
        sends in pieces, each when the client has taken those before: what a slow client leaves unread counts as long as
        its request does."""

        async def ending(message: Message) -> None:
            if message["type"] != "http.response.body":
                return await send(message)
            body = message.get("body", b"")
            for start in range(0, len(body) - PIECE_BYTES, PIECE_BYTES):
                piece = body[start : start + PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            last = body[(len(body) - 1) // PIECE_BYTES * PIECE_BYTES :] if body else body
            await send({**message, "body": last})
            if not message.get("more_body"):
                self.end()
            return None

        return ending

    def hold(self, num_bytes: int) -> None:
        """Count what was looked up for the request as part of its body. Raises BodiesFull."""
        self._bodies.take(self._owner, num_bytes)
        self._num_body_bytes += num_bytes

    def admit(
        self, requests: Sequence[GenerationRequest], num_at_once: int | None = None
    ) -> Sequence[GenerationRequest]:
        """The requests as the client's own. `num_at_once`: places that they take; None for one each generation. Raises
        NotAllowed, LimitReached, and InvalidRequest for more than the client may ever have."""
        owned = [self.client.own(request) for request in requests]
        num_generations = sum(request.num_choices for request in requests)
        self._enter(num_generations if num_at_once is None else num_at_once)
        self._meter.charge(num_generations, self._clock.now_ns(), num_paid=1)
        return owned

    def end(self) -> None:
        """Idempotent."""
        num_places, self._num_places = self._num_places, 0
        self._meter.leave(num_places)
        num_bytes, self._num_body_bytes = self._num_body_bytes, 0
        if num_bytes:
            self._bodies.give_back(self._owner, num_bytes)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The rest of the client's limit of requests, in OpenAI's headers."""
        allowance = self._meter.allowance(self._clock.now_ns())
        if allowance is None:
            return []
        reset_s = -(-allowance.reset_ns // 1_000_000_000)
        values = {"limit": allowance.limit, "remaining": allowance.remaining, "reset": f"{reset_s}s"}
        return [(f"x-ratelimit-{what}-requests".encode(), str(value).encode()) for what, value in values.items()]

    def _enter(self, num_places: int) -> None:
        """Take places until there are so many."""
        self._meter.enter(num_places, num_held=self._num_places)
        self._num_places = max(num_places, self._num_places)


class Authentication(ASGIMiddleware):
    """Begins and ends each visit. Refuses, by its headers alone, a request that needs a key and has none, or that is
    beyond a limit of its client."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, keys: KeyRing, clock: Clock, bodies: BodyBudget, page_paths: Collection[str] = ()) -> None:
        self._keys = keys
        self._clock = clock
        self._bodies = bodies
        self._page_paths = frozenset(page_paths)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        path = scope["path"].rstrip("/") or "/"
        is_charged = path not in self._page_paths and not is_health_check(path)
        meter = self._meter(scope["headers"], is_needed=is_charged)
        address = scope["client"] or ("", 0)
        visit = Visit(meter, self._clock, self._bodies, meter.client.name or f"address {address[0]}")
        scope["state"][_KEY] = visit
        try:
            if is_charged:
                visit.arrive(generates=bool(scope["route_handler"].opt.get("generates")))
            await next_app(scope, visit.reading(receive), visit.answering(send))
        finally:
            visit.end()

    def _meter(self, headers: Iterable[tuple[bytes, bytes]], *, is_needed: bool) -> ClientMeter:
        offered = [key for name, value in headers if (key := _key(name, value)) is not None]
        found = self._keys.find(offered if len(offered) <= MAX_OFFERED else ())
        if len(found) == 1:
            return found[0]
        if not is_needed:
            return ClientMeter(NOBODY)
        what = "the API key is not valid" if offered else "an API key is required"
        if found:
            what = "the API key must be one client's"
        raise NotAuthorizedException(
            f"{what}: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _key(name: bytes, value: bytes) -> bytes | None:
    if name == b"x-api-key":
        return value
    if name == b"authorization":
        scheme, _, key = value.partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else None
    return None


def visit_of(scope: Scope) -> Visit:
    """The visit of a request that has reached its route; a KeyError without authentication."""
    found: Visit = scope["state"][_KEY]
    return found


async def add_allowance(message: Message, scope: Scope) -> None:
    """A before-send hook: refusals have these headers too."""
    visit: Visit | None = scope["state"].get(_KEY)
    if visit is not None and message["type"] == "http.response.start":
        message["headers"] = [*message["headers"], *visit.headers()]


def admins_only(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
    """A guard of routes that report or change what belongs to everybody."""
    client = visit_of(connection.scope).client
    if not client.is_admin:
        raise NotAllowed(f"the key '{client.name}' may not do this: it needs a key with admin = true")


def requested_salt(headers: Mapping[str, str], cache_salt: str | None = None) -> str:
    """`cache_salt`: the body's, which counts before the header; empty without either."""
    return headers.get(SALT_HEADER, "") if cache_salt is None else cache_salt


def owner_of(documents: Documents, visit: Visit, salt: str) -> Owner:
    """The owner of a request's documents: its key and its tenant. `salt`: the one requested."""
    return documents.owner(visit.client.tenant(salt), visit.client.name)
