"""The context of an HTTP request: its client, found by its key, and the places and memory that it holds.

The key comes in `Authorization: Bearer KEY` or `x-api-key: KEY` and nowhere else. Health checks and pages need no key:
they hold nothing of a client.

A request is charged once when its headers have arrived, and takes a place of `max_concurrent` then if its route
generates, encodes or decodes, so that no body is read for a client that may not now. Each generation beyond the first
is charged, and takes a place, when it is known. `RequestContext.end` releases whatever was taken, however the exchange
ends.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Protocol, TypeVar

from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.exceptions import NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from application.ports.clock import IdSource
from application.services.lane import OWNER
from application.services.turns import Turns
from domain.byte_size import format_bytes
from domain.client import ANONYMOUS, ClientMeter, KeyRing
from domain.errors import NotAllowed, ServerUnavailable
from domain.host_name import network_of
from domain.request.document import Owner
from domain.request.request import GenerationRequest
from interfaces.http.errors import problem_of
from interfaces.http.incoming.gzip_body import is_gzip, unzipped
from interfaces.http.services import Services

T = TypeVar("T")

HEALTH_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/health/engine", "/get_load"})
"""/get_load is asked by routers as they ask for health: without a key, and a full server too."""

IGNORED_HEADER = b"x-cairn-ignored"
SALT_HEADER = "x-cairn-cache-salt"
"""Requests without a body name their tenant in a header, because addresses end up in logs."""

TAKES_PLACE = {"takes_place": True}
"""The `opt` of routes whose requests take a place when the headers arrive: those that read a prompt."""

LARGE_BYTES, HUGE_BYTES = 64 * 2**10, 2**20
"""Larger bodies are decoded and converted in a worker thread: one large body at a time, and beside it one huge body,
which can take seconds."""

PIECE_BYTES = 64 << 10
"""Size of the pieces in which an answer is sent."""

MAX_OFFERED = 4
"""Keys of one request that are compared with those of the server; clients send one, or one in each header."""

MIN_BUDGET_BYTES = 256 * 2**20
BODIES_AT_ONCE = 4
"""The budget has room for this many bodies of the largest size, where that is more than MIN_BUDGET_BYTES."""

_CONTEXT = "cairn_context"
_OPEN = "cairn_open_context"
CONNECTION = "cairn_connection"
"""The key of a WebSocket's SocketConnection in its state."""

_REQUEST_ID = "cairn_request_id"
_PLAIN_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class BodiesFull(ServerUnavailable):
    """The bodies of unanswered requests leave no room for this one."""

    code = "bodies_full"


class BodyBudget:
    """The memory that the bodies of all unanswered requests may take; half of it for one key, or for one address
    without a key. And the turns of keys and addresses in the work on large ones. Event loop only.

    A body counts as it arrives, not as it is announced, so that no header reserves memory; and until its request is
    answered, because the application keeps it that long. A body without room is refused at once, because incomplete
    bodies would wait for one another.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self.max_bytes = max(MIN_BUDGET_BYTES, BODIES_AT_ONCE * max_body_bytes)
        self.held_bytes = 0
        self._held_by: Counter[str] = Counter()
        self._turns = Turns(), Turns()

    async def run(self, owner: str, num_bytes: int, work: Callable[..., T], *arguments: Any) -> T:
        """Returns `work(*arguments)`, which decodes or converts a body of `num_bytes`: in its owner's turn if it is
        large, else at once."""
        if num_bytes <= LARGE_BYTES:
            return work(*arguments)
        return await self._turns[num_bytes > HUGE_BYTES].run(owner, num_bytes, work, *arguments)

    def take(self, owner: str, num_bytes: int) -> None:
        """Raises BodiesFull."""
        for whose, held_bytes, max_bytes in (
            ("your", self._held_by[owner], self.max_bytes // 2),
            ("the", self.held_bytes, self.max_bytes),
        ):
            if held_bytes + num_bytes > max_bytes:
                problem = f"{whose} requests that are being answered already hold bodies of {format_bytes(max_bytes)}"
                raise BodiesFull(f"{problem}; try again later")
        self.held_bytes += num_bytes
        self._held_by[owner] += num_bytes

    def release(self, owner: str, num_bytes: int) -> None:
        self.held_bytes -= num_bytes
        self._held_by[owner] -= num_bytes
        if not self._held_by[owner]:
            del self._held_by[owner]


class SocketConnection(Protocol):
    """The connection of a WebSocket, which the application keeps informed: its slot may be freed, and its end need not
    wait, while no message is being answered."""

    def accepted(self) -> None: ...

    def request_arrived(self) -> None: ...

    def request_answered(self) -> None: ...


class RequestContext:
    """One HTTP exchange of a known client, from its headers to the last byte of its answer. Event loop only.

    `client` is the client as it was when the exchange began, `arrived_ns` the monotonic time of that. `owner` names the
    share of `bodies` that the request's body takes. `ignored`: the fields of the body that have no effect. `tool_loop`:
    with the servers of tools that the request names itself.
    """

    def __init__(
        self, services: Services, meter: ClientMeter, bodies: BodyBudget, owner: str, headers: Headers | None = None
    ) -> None:
        self.services = services
        self.client = meter.client
        self.headers: Mapping[str, str] = Headers() if headers is None else headers
        self.arrived_ns = services.clock.now_ns()
        self.ignored: Sequence[str] = ()
        self.tool_loop = services.tool_loop
        self._meter = meter
        self._bodies = bodies
        self._owner = owner
        self._num_places = self._num_body_bytes = 0
        self._entered = AsyncExitStack()

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Returns `work(*arguments)`, which decodes or converts the request's body with what it refers to."""
        return await self._bodies.run(self._owner, self._num_body_bytes, work, *arguments)

    def arrive(self, *, takes_place: bool) -> None:
        """Charges the request. Raises LimitReached."""
        self._meter.charge(1, self.arrived_ns)
        self._num_places = self._meter.enter(int(takes_place))

    def reading(self, receive: Receive) -> Receive:
        """Returns `receive`, counting the body against the budget. It raises BodiesFull."""

        async def counted() -> Any:
            message = await receive()
            if message["type"] == "http.request" and (num_bytes := len(message.get("body", b""))):
                self.hold(num_bytes)
            return message

        return counted

    def answering(self, send: Send) -> Send:
        """Returns `send`, ending the exchange with its last message: the client may send the next request as soon as it
        has that. Sends in pieces, each when the client has taken those before: the request holds its
        places as long as a slow client has pieces to take."""

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
                await self.end()
            return None

        return ending

    def hold(self, num_bytes: int) -> None:
        """Counts what was looked up for the request as part of its body. Raises BodiesFull."""
        self._bodies.take(self._owner, num_bytes)
        self._num_body_bytes += num_bytes

    async def enter(self, entered: AbstractAsyncContextManager[T]) -> T:
        """Enters a context that the exchange leaves when it ends, however it ends."""
        return await self._entered.enter_async_context(entered)

    async def admit(
        self, requests: Sequence[GenerationRequest], *, in_turn: bool = False
    ) -> Sequence[GenerationRequest]:
        """Returns the requests as the client's own, with resolved model names. They take a place for each generation,
        and one in all if they are served `in_turn`. Raises ModelNotFound, NotAllowed, LimitReached, and InvalidRequest
        for more than the client may ever have."""
        owned = [self.client.own(request) for request in await self.services.models.resolved(requests)]
        num_generations = sum(request.num_choices for request in owned)
        self._num_places = self._meter.enter(1 if in_turn else num_generations, num_held=self._num_places)
        self._meter.charge(num_generations, self.services.clock.now_ns(), num_paid=1)
        return owned

    def salt(self, cache_salt: str | None = None) -> str:
        """Returns the salt that the request names: `cache_salt` of its body, else its header; empty without either."""
        return self.headers.get(SALT_HEADER, "") if cache_salt is None else cache_salt

    def document_owner(self, cache_salt: str | None = None) -> Owner:
        """Returns the owner of the request's documents: its key and its tenant. `cache_salt`: the body's."""
        return self.services.documents.owner(self.client.tenant(self.salt(cache_salt)), self.client.name)

    async def end(self) -> None:
        """Leaves what was entered, and releases the places and body bytes of the exchange. Idempotent."""
        await self._entered.aclose()
        num_places, self._num_places = self._num_places, 0
        self._meter.leave(num_places)
        num_bytes, self._num_body_bytes = self._num_body_bytes, 0
        if num_bytes:
            self._bodies.release(self._owner, num_bytes)

    def answer_headers(self) -> list[tuple[bytes, bytes]]:
        """Returns the client's limit of requests and what is left of it, in OpenAI's headers, and a header with the
        fields that have no effect, where there are any."""
        allowance = self._meter.allowance(self.services.clock.now_ns())
        limits = [(f"x-ratelimit-{name}-requests".encode(), value.encode()) for name, value in allowance.items()]
        return limits + ([(IGNORED_HEADER, ", ".join(self.ignored).encode())] if self.ignored else [])


class Authentication(ASGIMiddleware):
    """The middleware that makes and ends each RequestContext. Refuses, by its headers alone, a request that needs a key
    and has none, or that is beyond a limit of its client."""

    scopes = (ScopeType.HTTP, ScopeType.WEBSOCKET)

    def __init__(self, services: Services, keys: KeyRing, bodies: BodyBudget, page_paths: Collection[str] = ()) -> None:
        self._services = services
        self._keys = keys
        self._bodies = bodies
        self._page_paths = frozenset(page_paths)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        path = scope["path"].rstrip("/") or "/"
        is_charged = path not in self._page_paths and not is_health_check(path)
        if scope["type"] == ScopeType.WEBSOCKET:
            await self._handle_socket(scope, receive, send, next_app)
            return
        context = scope["state"][_CONTEXT] = self._open(scope, is_charged)
        try:
            if is_charged:
                context.arrive(takes_place=bool(scope["route_handler"].opt.get("takes_place")))
            body = unzipped(receive) if is_gzip(context.headers.get("content-encoding", "")) else receive
            await next_app(scope, context.reading(body), context.answering(send))
        finally:
            await context.end()

    async def _handle_socket(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Each message of a WebSocket is a request of its own; the handshake is answered only with a valid key."""
        open_context = partial(self._open, scope, True)
        try:
            open_context()
        except NotAuthorizedException as error:
            await scope["litestar_app"].state.refusals.send(scope, send, problem_of(error))
            return
        scope["state"][_OPEN] = open_context
        await next_app(scope, receive, send)

    def _open(self, scope: Scope, is_key_needed: bool) -> RequestContext:
        """Returns the context of a request of the client. Raises NotAuthorizedException."""
        meter = self._meter(scope["headers"], is_needed=is_key_needed)
        address = scope["client"] or ("", 0)
        owner = meter.client.name or f"address {network_of(address[0])}"
        OWNER.set(owner)
        return RequestContext(self._services, meter, self._bodies, owner, Headers.from_scope(scope))

    def _meter(self, headers: Iterable[tuple[bytes, bytes]], *, is_needed: bool) -> ClientMeter:
        offered = [key for name, value in headers if (key := _key(name, value)) is not None]
        found = self._keys.find(offered if len(offered) <= MAX_OFFERED else ())
        if len(found) == 1:
            return found[0]
        if not is_needed:
            return ClientMeter(ANONYMOUS)
        what = "the API key is not valid" if offered else "an API key is required"
        if found:
            what = "the API keys belong to different clients"
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


def context_of(scope: Scope) -> RequestContext:
    """Returns the context of a request that has reached its route; a KeyError without authentication."""
    found: RequestContext = scope["state"][_CONTEXT]
    return found


def context_opener(scope: Scope) -> Callable[[], RequestContext]:
    """Returns a function that makes the context of the next message of a WebSocket that has reached its route. It
    raises NotAuthorizedException once the key is not valid any more."""
    found: Callable[[], RequestContext] = scope["state"][_OPEN]
    return found


def is_health_check(path: str) -> bool:
    """Returns whether the path is a health check, which needs no key and is answered by a full server too."""
    return path.rstrip("/") in HEALTH_PATHS


def admins_only(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
    """A guard of routes that report or change what belongs to all clients. Raises NotAllowed."""
    client = context_of(connection.scope).client
    if not client.admin:
        raise NotAllowed(f"the key '{client.name}' may not do this: use a key with admin = true")


def changes_allowed(is_on: bool) -> Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], None]:
    """A guard of routes that change the models, the settings or the keys. `is_on`: as in the settings. Raises
    NotAllowed."""

    def check(_connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
        if not is_on:
            raise NotAllowed("nothing can be changed over HTTP here: server.admin = false in the settings")

    return check


def request_id(scope: Scope, ids: IdSource) -> str:
    """Returns the id that the client sent if it is plain, else a new one; the same for the whole exchange."""
    state: dict[str, Any] = scope["state"]
    if _REQUEST_ID not in state:
        sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        state[_REQUEST_ID] = sent.decode("ascii") if _PLAIN_ID.fullmatch(sent) else ids.request_id("req")
    found: str = state[_REQUEST_ID]
    return found


def add_headers(ids: IdSource) -> Callable[[Message, Scope], Awaitable[None]]:
    """A before-send hook that adds the request's id and the client's limits to every response, also to those made
    outside any route, such as 404."""

    async def hook(message: Message, scope: Scope) -> None:
        if message["type"] == "http.response.start":
            context: RequestContext | None = scope["state"].get(_CONTEXT)
            of_context = [] if context is None else context.answer_headers()
            own = (b"x-request-id", request_id(scope, ids).encode())
            message["headers"] = [*message["headers"], own, *of_context]

    return hook
