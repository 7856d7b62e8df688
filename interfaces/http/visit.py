"""One HTTP exchange of a known client: what it may do, and what it takes of the client's limits.

It counts as one request when its headers have arrived. Each generation that it asks for is one more after the first,
and takes a place until the exchange is over, however that ends: `end` gives back whatever was taken.
"""

from collections.abc import Sequence
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Message, Scope

from application.ports.clock import Clock
from domain.client_meter import ClientMeter
from domain.errors import NotAllowed
from domain.request import GenerationRequest

_KEY = "cairn_visit"


class Visit:
    """Event loop only. `client`: as it was when the visit began."""

    def __init__(self, meter: ClientMeter, clock: Clock) -> None:
        self.client = meter.client
        self._meter = meter
        self._clock = clock
        self._num_places = 0

    def arrive(self) -> None:
        """Raises LimitReached."""
        self._meter.charge(1, self._clock.now_ns())

    def admit(
        self, requests: Sequence[GenerationRequest], num_at_once: int | None = None
    ) -> Sequence[GenerationRequest]:
        """The requests as the client's own. `num_at_once`: places that they take; None for one each generation. Raises
        NotAllowed, LimitReached, and InvalidRequest for more than the client may ever have."""
        owned = [self.client.own(request) for request in requests]
        num_generations = sum(request.num_choices for request in requests)
        num_places = num_generations if num_at_once is None else num_at_once
        self._meter.enter(num_places)
        self._num_places += num_places
        self._meter.charge(num_generations, self._clock.now_ns(), num_paid=1)
        return owned

    def end(self) -> None:
        """Idempotent."""
        num_places, self._num_places = self._num_places, 0
        self._meter.leave(num_places)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What is left of the client's limit of requests, as OpenAI tells it."""
        allowance = self._meter.allowance(self._clock.now_ns())
        if allowance is None:
            return []
        reset_s = -(-allowance.reset_ns // 1_000_000_000)
        told = {"limit": allowance.limit, "remaining": allowance.remaining, "reset": f"{reset_s}s"}
        return [(f"x-ratelimit-{what}-requests".encode(), str(value).encode()) for what, value in told.items()]


def begin_visit(scope: Scope, visit: Visit) -> None:
    scope["state"][_KEY] = visit


def visit_of(scope: Scope) -> Visit:
    """Of a request that has reached its route; a KeyError where nobody asked who it is."""
    found: Visit = scope["state"][_KEY]
    return found


async def add_allowance(message: Message, scope: Scope) -> None:
    """A before-send hook: refusals have these headers too."""
    visit: Visit | None = scope["state"].get(_KEY)
    if visit is not None and message["type"] == "http.response.start":
        message["headers"] = [*message["headers"], *visit.headers()]


def admins_only(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
    """A guard of routes that tell or change what belongs to everybody."""
    client = visit_of(connection.scope).client
    if not client.is_admin:
        raise NotAllowed(f"the key '{client.name}' may not do this: it needs a key with admin = true")


__all__ = ("Visit", "add_allowance", "admins_only", "begin_visit", "visit_of")
