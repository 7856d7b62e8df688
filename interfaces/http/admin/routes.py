"""Everything below `/admin/api`: what an admin's page needs besides the routes that there are without it.

Models are managed by `/models`, and prefixes are cleared by `/v1/cache/clear`.
"""

from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from interfaces.http.admin.overview import overview_route
from interfaces.http.admin.requests import request_routes
from interfaces.http.admin.settings import settings_route
from interfaces.http.services import Services


def admin_routes(services: Services, version: str, error_type: type[Struct]) -> list[HTTPRouteHandler]:
    return [
        overview_route(services, version, error_type),
        *request_routes(services, error_type),
        settings_route(services, error_type),
    ]
