"""Other names of routes: OpenAI's without their prefix, because the base URL of some clients ends before `/v1`, and the
place where tools look for an OpenAPI document."""

from litestar.types import ASGIApp, Receive, Scope, Send

from interfaces.http.answering.dialect import is_below

_PATHS = ("/chat/completions", "/completions", "/embeddings", "/responses")
_DOCUMENT = "/openapi.json"


class Unprefixed:
    """ASGI middleware around the whole application, which knows each route by one name only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(is_below(scope["path"], own) for own in _PATHS):
            scope["path"] = f"/v1{scope['path']}"
        elif scope["path"] == _DOCUMENT:
            scope["path"] = f"/schema{_DOCUMENT}"
        await self._app(scope, receive, send)
