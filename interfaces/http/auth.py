"""One API key for the whole server, as `Authorization: Bearer KEY` or `x-api-key: KEY`. Health checks stay open."""

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import TypeAlias

from litestar.enums import ScopeType
from litestar.exceptions import NotAuthorizedException
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready"})


def is_open(path: str) -> bool:
    """Whether it is answered without a key, and by a server that has no place left."""
    return path.rstrip("/") in OPEN_PATHS


class ApiKey:
    """Compares digests in constant time, so that neither the key's bytes nor its length can be probed."""

    def __init__(self, api_key: str) -> None:
        self._digest = sha256(api_key.encode()).digest()

    def is_in(self, headers: Headers) -> bool:
        return any([compare_digest(sha256(key).digest(), self._digest) for key in offered_keys(headers)])  # no way out


class ApiKeyAuth(ASGIMiddleware):
    """Refuses what needs the key and does not have it, by its headers alone."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, api_key: ApiKey) -> None:
        self._api_key = api_key

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        if not is_open(scope["path"]):
            self._check(scope["headers"])
        await next_app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        if not self._api_key.is_in(headers):
            offered = offered_keys(headers)
            what = "the API key is not valid" if offered else "an API key is required"
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


__all__ = ("OPEN_PATHS", "ApiKey", "ApiKeyAuth", "is_open")
