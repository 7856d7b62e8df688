"""One API key for the whole server, as `Authorization: Bearer KEY` or `x-api-key: KEY`. Health checks stay open."""

from hashlib import sha256
from hmac import compare_digest

from litestar.enums import ScopeType
from litestar.exceptions import NotAuthorizedException
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready"})


def is_open(path: str) -> bool:
    """Whether it is answered without a key, and by a server that has no place left."""
    return path.rstrip("/") in OPEN_PATHS


class ApiKeyAuth(ASGIMiddleware):
    """Compares digests in constant time, so that neither the key's bytes nor its length can be probed."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, api_key: str) -> None:
        self._digest = sha256(api_key.encode()).digest()

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        if not is_open(scope["path"]):
            self._check(scope)
        await next_app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        offered = [key for name, value in scope["headers"] if (key := _key(name, value)) is not None]
        if not any([compare_digest(sha256(key).digest(), self._digest) for key in offered]):  # no early way out
            what = "the API key is not valid" if offered else "an API key is required"
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


__all__ = ("OPEN_PATHS", "ApiKeyAuth", "is_open")
