"""What a server that has no place left still answers: whether it lives."""

from typing import Any

from interfaces.http.auth import is_open
from interfaces.http.errors import Problem
from interfaces.http.refusal import Refusals


class HealthOnly:
    """ASGI middleware for connections beyond the limit: health checks pass, all else gets `problem`."""

    def __init__(self, app: Any, problem: Problem, refusals: Refusals) -> None:
        self._app = app
        self._problem = problem
        self._refusals = refusals

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        await self._refusals.send(scope["path"], send, self._problem, closes=True)


__all__ = ("HealthOnly",)
