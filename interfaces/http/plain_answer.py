"""Answers that are no stream and no dialect's: cancelled when their client leaves."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.connection import Request

from domain.errors import ModelNotFound
from interfaces.http.disconnect import unless_client_leaves
from interfaces.http.services import Services
from interfaces.http.start import naming_what_is_served
from interfaces.http.visit import visit_of

T = TypeVar("T")


async def plain_answer(services: Services, request: Request[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. A ModelNotFound of its own names the models that the client may use."""
    try:
        return await unless_client_leaves(request, work)
    except ModelNotFound as error:
        raise await naming_what_is_served(services, error, visit_of(request.scope).client) from None


__all__ = ("plain_answer",)
