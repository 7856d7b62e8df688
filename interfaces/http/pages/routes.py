"""GET /admin, /chat, /docs and the files they are made of, below /pages/; GET / leads to the chat.

They contain no data of the server, so they need no key: they request what they show, with the key that the user gave
them. A strict policy keeps it so: a page runs no script but those served here, and connects to no other server. The
files are listed once, when the server starts, and stay in memory: no path of a request becomes a path of the file
system. Files of types that browsers do not need (licenses, notes) are not served.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response

FOLDER = Path(__file__).parent / "files"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # kept and revalidated by its tag: another version is another page
}

# Litestar adds the charset of texts.
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

_START = {"name": "cairn", "api": "/v1", "chat": "/chat", "admin": "/admin", "docs": "/docs", "schema": "/openapi.json"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file that a browser may have. `etag` changes with the bytes; as in the header, with its quotes."""

    body: bytes
    media_type: str
    etag: str

    def is_known_as(self, if_none_match: str) -> bool:
        """Returns whether a client that sends this `If-None-Match` has it already (RFC 9110, 13.1.2: compared
        weakly)."""
        tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
        return bool(tags & {self.etag, "*"})


def assets(folder: Path = FOLDER) -> Mapping[str, Asset]:
    """The files by path of the address: `NAME.html` of the folder itself is the page `/NAME`, all else is below
    `/pages/`, and its icon is also where browsers look for one unasked."""
    found: dict[str, Asset] = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix not in _TYPES or not file.is_file():
            continue
        inner = file.relative_to(folder)
        is_page = file.suffix == ".html" and len(inner.parts) == 1
        body = file.read_bytes()
        asset = Asset(body, _TYPES[file.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')
        found[f"/{file.stem}" if is_page else f"/pages/{inner.as_posix()}"] = asset
    if "/pages/icon.svg" in found:
        found["/favicon.ico"] = found["/pages/icon.svg"]
    return found


def page_routes(found: Mapping[str, Asset]) -> list[HTTPRouteHandler]:
    """A handler each, so that no other path is one of theirs. `found`: by path."""
    return [_start_route(), *(_route(path, asset) for path, asset in found.items())]


def page_paths(found: Mapping[str, Asset]) -> frozenset[str]:
    """The paths of all pages, which need no key."""
    return frozenset({"/", *found})


def _start_route() -> HTTPRouteHandler:
    @get("/", sync_to_thread=False, include_in_schema=False)
    def start(request: Request[Any, Any, Any]) -> Response[Any]:
        if "text/html" in request.headers.get("accept", ""):
            return Response(b"", status_code=307, headers={**_HEADERS, "Location": "/chat"})
        return Response(_START, headers=_HEADERS, media_type="application/json")

    return start


def _route(path: str, asset: Asset) -> HTTPRouteHandler:
    headers = {**_HEADERS, "ETag": asset.etag}

    @get(path, sync_to_thread=False, include_in_schema=False)
    def page(request: Request[Any, Any, Any]) -> Response[bytes]:
        if asset.is_known_as(request.headers.get("if-none-match", "")):
            return Response(b"", status_code=304, headers=headers, media_type=asset.media_type)
        return Response(asset.body, headers=headers, media_type=asset.media_type)

    return page
