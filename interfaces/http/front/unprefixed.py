"""OpenAI's routes without their prefix: the base URL of some clients ends before `/v1`."""

from litestar.types import ASGIApp, Receive, Scope, Send

from interfaces.http.answering.dialect import is_below

_PATHS = ("/chat/completions", "/completions", "/embeddings", "/responses")


class Unprefixed:
    """ASGI middleware around the whole application, which knows these routes with the prefix only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(is_below(scope["path"], own) for own in _PATHS):
            scope["path"] = f"/v1{scope['path']}"
        await self._app(scope, receive, send)
