"""One id an HTTP exchange, in the `x-request-id` header of every response and in the log."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

from litestar.types import Message, Scope

from application.ports.id_source import IdSource

_KEY = "cairn_request_id"
_ACCEPTED = re.compile(rb"[A-Za-z0-9._-]{1,128}")


def request_id(scope: Scope, ids: IdSource) -> str:
    """The client's own id if it sent a plain one, else a new one; the same for the whole exchange."""
    state: dict[str, Any] = scope["state"]
    if _KEY not in state:
        sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        state[_KEY] = sent.decode("ascii") if _ACCEPTED.fullmatch(sent) else ids.request_id("req")
    found: str = state[_KEY]
    return found


def add_request_id(ids: IdSource) -> Callable[[Message, Scope], Awaitable[None]]:
    """A before-send hook: it also sees responses made outside any route, such as 404."""

    async def hook(message: Message, scope: Scope) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"x-request-id", request_id(scope, ids).encode())]

    return hook
