"""What all that is read below `/admin/api` has in common: admins alone, and kept by nobody on the way."""

from litestar import get
from litestar.datastructures import CacheControlHeader
from msgspec import Struct

from interfaces.http.answering.documented import errors
from interfaces.http.incoming.request_context import admins_only

PREFIX = "/admin/api"


def admin_get(path: str, operation_id: str, error_type: type[Struct], *statuses: int) -> get:
    """A decorator of handlers. `path`: below PREFIX. `statuses`: of the errors that it has of its own."""
    return get(
        PREFIX + path,
        guards=[admins_only],
        cache_control=CacheControlHeader(no_store=True),
        operation_id=operation_id,
        responses=errors(error_type, 401, *statuses),
    )
