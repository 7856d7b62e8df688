"""GET /metrics in Prometheus' text format, or in OpenMetrics where the scraper asks for that. Where keys are needed,
scrapers need one of an admin."""

from collections.abc import Callable
from typing import Any

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response

from interfaces.http.visit import admins_only

_CHARSET = "; charset=utf-8"
"""Which Litestar adds to text by itself."""


def metrics_route(metrics_text: Callable[[str], tuple[bytes, str]]) -> HTTPRouteHandler:
    @get("/metrics", guards=[admins_only], sync_to_thread=True, include_in_schema=False)
    def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        body, content_type = metrics_text(request.headers.get("accept", ""))
        media_type = content_type.removesuffix(_CHARSET) if content_type.startswith("text/") else content_type
        return Response(body, media_type=media_type, headers={"vary": "accept"})

    return metrics


__all__ = ("metrics_route",)
