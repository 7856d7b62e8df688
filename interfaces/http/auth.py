"""Who asks, by the key in `Authorization: Bearer KEY` or `x-api-key: KEY` and nowhere else.

Health checks stay open, and so do pages: they hold nothing.
"""

from collections.abc import Collection, Iterable
from typing import TypeAlias

from litestar.enums import ScopeType
from litestar.exceptions import NotAuthorizedException
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from application.ports.clock import Clock
from domain.client import NOBODY
from domain.client_meter import ClientMeter
from domain.key_ring import KeyRing
from interfaces.http.visit import Visit, begin_visit

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/health/engine"})

MAX_OFFERED = 4
"""Keys in one request that are looked at, each compared with all: clients send one, or one in each header."""


def is_open(path: str) -> bool:
    """Whether it is answered without a key, and by a server that has no place left."""
    return path.rstrip("/") in OPEN_PATHS


class Authentication(ASGIMiddleware):
    """Begins and ends each visit. Refuses, by its headers alone, what needs a key and has none, or comes too often."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, keys: KeyRing, clock: Clock, page_paths: Collection[str] = ()) -> None:
        self._keys = keys
        self._clock = clock
        self._page_paths = frozenset(page_paths)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        is_charged = not (is_open(scope["path"]) or scope["path"].rstrip("/") in self._page_paths)
        visit = Visit(self._meter(scope["headers"], is_needed=is_charged), self._clock)
        begin_visit(scope, visit)
        try:
            if is_charged:
                visit.arrive()
            await next_app(scope, receive, send)
        finally:
            visit.end()

    def _meter(self, headers: Headers, *, is_needed: bool) -> ClientMeter:
        offered = offered_keys(headers)
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


def offered_keys(headers: Headers) -> list[bytes]:
    return [key for name, value in headers if (key := _key(name, value)) is not None]


def _key(name: bytes, value: bytes) -> bytes | None:
    if name == b"x-api-key":
        return value
    if name == b"authorization":
        scheme, _, key = value.partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else None
    return None


__all__ = ("MAX_OFFERED", "OPEN_PATHS", "Authentication", "is_open")
