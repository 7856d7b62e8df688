"""GET /metrics in Prometheus' text format. Where an API key is set, scrapers need it too."""

from collections.abc import Callable

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_route(metrics_text: Callable[[], bytes]) -> HTTPRouteHandler:
    @get("/metrics", sync_to_thread=True, include_in_schema=False)
    def metrics() -> Response[bytes]:
        return Response(metrics_text(), media_type=CONTENT_TYPE)

    return metrics


__all__ = ("metrics_route",)
