"""GET /metrics in Prometheus' text format. Where keys are needed, scrapers need one of an admin."""

from collections.abc import Callable

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response

from interfaces.http.visit import admins_only

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_route(metrics_text: Callable[[], bytes]) -> HTTPRouteHandler:
    @get("/metrics", guards=[admins_only], sync_to_thread=True, include_in_schema=False)
    def metrics() -> Response[bytes]:
        return Response(metrics_text(), media_type=CONTENT_TYPE)

    return metrics


__all__ = ("metrics_route",)
