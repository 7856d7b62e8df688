"""The check of every request before its key, route and body are read, and the answers to requests that it refuses.

A server on loopback is open to the programs of its machine, which include browsers that run pages of other sites. So
`Host` must be a name of this server, and no page of another origin may send requests unless a setting lists it. Bodies
must be of a type that pages can send only after a preflight, which is refused like the rest: JSON by name, or bytes,
the type that some client libraries send. Where a dialect's clients name no type, any will do for a program: a browser
sends `Origin` or `Sec-Fetch-Site` with every POST of a page.

A page whose name its owner points at this machine (DNS rebinding) is, for the browser, the same site as this server and
may read every answer. It cannot choose the `Host` header though: that holds the page's own name.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, cast

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from application.settings import ANY, ServerSettings, is_loopback
from domain.host_name import address_of, bare_host, host_of
from domain.printable import printable
from interfaces.http.answering.dialect import Dialects
from interfaces.http.errors import Problem
from interfaces.http.front.connection_limits import (
    HEADERS_TOO_LARGE,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_TARGET_BYTES,
    TARGET_TOO_LONG,
)
from interfaces.http.incoming.gzip_body import is_readable
from interfaces.http.incoming.request_context import is_health_check


class Refusals:
    """Answers to refused input, in the shape of the dialect whose path was requested. Event loop only. `note` is called
    with the code of a refusal, and with a detail for the log."""

    def __init__(self, dialects: Dialects, note: Callable[[str, str], None]) -> None:
        self.dialects = dialects
        self._note = note

    def note(self, problem: Problem) -> None:
        self._note(problem.code, problem.message)

    async def send(self, scope: Any, send: Any, problem: Problem, *, closes: bool = False) -> None:
        """Sends the refusal of a request, or of the handshake of a WebSocket, as ASGI messages, and notes it. `closes`:
        it ends the connection."""
        self.note(problem)
        headers, body = self._answer(scope["path"], problem)
        if closes:
            headers = {**headers, "connection": "close"}
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        kind = "http.response" if scope["type"] == ScopeType.HTTP else "websocket.http.response"
        await send({"type": f"{kind}.start", "status": problem.status, "headers": encoded})
        await send({"type": f"{kind}.body", "body": body, "more_body": False})

    def as_bytes(self, path: str, problem: Problem) -> bytes:
        """The refusal as HTTP/1.1, for a connection that is closed with it."""
        headers, body = self._answer(path, problem)
        lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def _answer(self, path: str, problem: Problem) -> tuple[Mapping[str, str], bytes]:
        """Returns the headers and the body of the refusal."""
        body = msgspec.json.encode(self.dialects.of(path).error_body(problem))
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        return {**headers, **{name.lower(): value for name, value in problem.headers.items()}}, body


class HealthOnly:
    """ASGI middleware for connections beyond the limit: health checks pass, all else gets `problem`."""

    def __init__(self, app: Any, problem: Problem, refusals: Refusals) -> None:
        self._app = app
        self._problem = problem
        self._refusals = refusals

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if is_health_check(scope["path"]):
            await self._app(scope, receive, send)
        else:
            await self._refusals.send(scope, send, self._problem, closes=True)


_BODY_TYPES = frozenset({"application/json", "application/octet-stream"})
"""The accepted types exclude the three that a page may send without a preflight: form data, urlencoded, plain text."""

_FROM_PAGES = frozenset({b"origin", b"sec-fetch-site"})

_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class RequestGuard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, refusals: Refusals) -> None:
        self._app = app
        self._settings = settings
        listed = (bare_host(host) for host in (*settings.allowed_hosts, settings.host))
        self._host_names = frozenset(name for name in listed if name is not None)
        self._origins = frozenset(origin.lower() for origin in settings.cors_origins)
        self._refusals = refusals

    def answers_to(self, authority: str) -> bool:
        """Returns whether a host is allowed: loopback, a name of the settings, or every IP address of a server that
        other machines can reach, since no name server can redirect one. `authority`: a `Host` header, with or without a
        port."""
        host = host_of(authority)
        if host is None:
            return False
        is_address_allowed = not is_loopback(self._settings.host) and address_of(host) is not None
        is_known = host in self._host_names or is_loopback(host)
        return is_known or is_address_allowed or ANY in self._settings.allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in (ScopeType.HTTP, ScopeType.WEBSOCKET):
            if (problem := self._problem(scope)) is not None:
                await self._refusals.send(scope, send, problem)
                return
            if scope["type"] == ScopeType.HTTP and scope["method"] == "HEAD":  # as GET; uvicorn sends no body
                scope = cast(Scope, {**scope, "method": "GET"})
        await self._app(scope, receive, send)

    def _problem(self, scope: Scope) -> Problem | None:
        method = str(scope["method"]) if scope["type"] == ScopeType.HTTP else "GET"
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value.decode("latin-1"))
        hosts = headers.get(b"host", [])
        return (
            _size_problem(scope)
            or self._host_problem(hosts, str(scope["http_version"]))
            or self._origin_problem(headers.get(b"origin", []), hosts)
            or self._site_problem(headers, method)
            or (self._type_problem(headers, scope) if scope["type"] == ScopeType.HTTP else None)
            or _encoding_problem(headers.get(b"content-encoding", []))
        )

    def _host_problem(self, hosts: list[str], http_version: str) -> Problem | None:
        if not hosts and http_version == "1.0":
            return None  # old health checkers; a browser always names the host
        if len(hosts) != 1:
            return Problem(400, "invalid_request", "the request must have exactly one Host header")
        if self.answers_to(hosts[0]):
            return None
        message = f"this server does not answer to the host '{printable(hosts[0])}'; server.allowed_hosts can list it"
        return Problem(421, "host_not_allowed", message)

    def _origin_problem(self, origins: list[str], hosts: list[str]) -> Problem | None:
        own = {f"{scheme}://{host.strip().lower()}" for scheme in ("http", "https") for host in hosts}
        foreign = [origin for origin in origins if origin.lower() not in own | self._origins]
        if not foreign or ANY in self._origins:
            return None
        page = printable(foreign[0])
        message = f"web pages of '{page}' may not send requests to this server; server.cors_origins can list them"
        return Problem(403, "origin_not_allowed", message)

    def _site_problem(self, headers: dict[bytes, list[str]], method: str) -> Problem | None:
        """Browsers omit `Origin` from some requests, but report whether they cross sites. A link may be followed."""
        if b"origin" in headers or "cross-site" not in headers.get(b"sec-fetch-site", []) or ANY in self._origins:
            return None
        if method == "GET" and headers.get(b"sec-fetch-dest") == ["document"]:
            return None
        message = (
            "web pages of other sites may not send requests to this server; server.cors_origins can list their origins"
        )
        return Problem(403, "origin_not_allowed", message)

    def _type_problem(self, headers: dict[bytes, list[str]], scope: HTTPScope) -> Problem | None:
        types = headers.get(b"content-type", [])
        if str(scope["method"]) not in _WITH_BODY or (types and all(map(_is_allowed, types))):
            return None
        if not _FROM_PAGES & headers.keys() and self._refusals.dialects.of(scope["path"]).takes_any_type:
            return None
        sent = f"not '{printable(types[0])}'" if types else "but there is no Content-Type header"
        return Problem(415, "unsupported_media_type", f"bodies must have the content type application/json, {sent}")


def _size_problem(scope: Scope) -> Problem | None:
    query = scope["query_string"]
    if len(scope["raw_path"]) + len(b"?" + query if query else b"") > MAX_TARGET_BYTES:
        return TARGET_TOO_LONG
    sizes = [len(name + b": " + value + b"\r\n") for name, value in scope["headers"]]
    return HEADERS_TOO_LARGE if len(sizes) > MAX_HEADERS or sum(sizes) > MAX_HEADER_BYTES else None


def _encoding_problem(encodings: list[str]) -> Problem | None:
    if is_readable(encodings):
        return None
    sent = printable(", ".join(encodings))
    message = f"bodies must have the content encoding gzip or none, not '{sent}'; send the body as it is"
    return Problem(415, "unsupported_media_type", message)


def _is_allowed(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() in _BODY_TYPES
