"""Answers that no route makes, to input that is refused before there is a request, or before it may be looked at.

They have the shape of every other error of the dialect whose path was asked.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from litestar.types import Send

from application.events import HttpRefused
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from interfaces.http.answering.dialect import Dialects
from interfaces.http.errors import Problem
from interfaces.http.incoming.request_context import is_health_check


class Refusals:
    """Event loop only. `note` is called with the code of a refusal, and with a detail for the log."""

    def __init__(self, dialects: Dialects, note: Callable[[str, str], None]) -> None:
        self._dialects = dialects
        self._note = note

    def note(self, problem: Problem) -> None:
        self._note(problem.code, problem.message)

    async def send(self, path: str, send: Send, problem: Problem, *, closes: bool = False) -> None:
        """Send the refusal as ASGI messages, and note it. `closes`: it ends the connection."""
        self.note(problem)
        headers, body = self._answer(path, problem)
        if closes:
            headers = {**headers, "connection": "close"}
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": problem.status, "headers": encoded})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def as_bytes(self, path: str, problem: Problem) -> bytes:
        """The refusal as HTTP/1.1, for a connection that is closed with it."""
        headers, body = self._answer(path, problem)
        lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def _answer(self, path: str, problem: Problem) -> tuple[Mapping[str, str], bytes]:
        """Headers and body."""
        body = msgspec.json.encode(self._dialects.of(path).error_body(problem))
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        return {**headers, **{name.lower(): value for name, value in problem.headers.items()}}, body


class HealthOnly:
    """ASGI middleware for connections beyond the limit: health checks pass, all else gets `problem`."""

    def __init__(self, app: Any, problem: Problem, refusals: Refusals) -> None:
        self._app = app
        self._problem = problem
        self._refusals = refusals

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if is_health_check(scope["path"]):
            await self._app(scope, receive, send)
        else:
            await self._refusals.send(scope["path"], send, self._problem, closes=True)


def refusals_to(dialects: Dialects, events: EventSink, clock: Clock) -> Refusals:
    """Makes an event of each."""
    return Refusals(dialects, lambda code, detail: events.emit(HttpRefused(code, detail, clock.now_ns())))
