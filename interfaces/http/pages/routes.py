"""GET /admin, /chat and the files they are made of, below /pages/.

They hold nothing of the server's, so they need no key: what they show they ask for, with the key that somebody gave
them. A strict policy keeps it so: a page runs no script but those served here, and talks to nobody but this server.
"""

from collections.abc import Mapping
from typing import Any

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response

from interfaces.http.pages.asset import Asset

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
    "Cache-Control": "no-cache",  # kept, and asked for again by its tag: another version is another page
}


def page_routes(found: Mapping[str, Asset]) -> list[HTTPRouteHandler]:
    """A handler each, so that no other path is one of theirs. `found`: by path."""
    return [_route(path, asset) for path, asset in found.items()]


def _route(path: str, asset: Asset) -> HTTPRouteHandler:
    headers = {**_HEADERS, "ETag": asset.etag}

    @get(path, sync_to_thread=False, include_in_schema=False)
    def page(request: Request[Any, Any, Any]) -> Response[bytes]:
        if asset.is_known_as(request.headers.get("if-none-match", "")):
            return Response(b"", status_code=304, headers=headers, media_type=asset.media_type)
        return Response(asset.body, headers=headers, media_type=asset.media_type)

    return page


__all__ = ("POLICY", "page_routes")
