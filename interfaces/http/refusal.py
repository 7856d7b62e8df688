"""Answers that no route makes: to what is turned away before there is a request, or one that may be looked at.

They have the shape of every other error. `Refused` tells whoever counts them; it runs on the event loop.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TypeAlias

import msgspec
from litestar.types import Send

from application.events import HttpRefused
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from interfaces.http.errors import Problem
from interfaces.http.openai.errors import error_body

Refused: TypeAlias = Callable[[str, str], None]
"""Called with the problem's code, and with a detail for the log."""


def refused_to(events: EventSink, clock: Clock) -> Refused:
    """Makes an event of each."""

    def note(code: str, detail: str) -> None:
        events.emit(HttpRefused(code, detail, clock.now_ns()))

    return note


def refusal(problem: Problem) -> tuple[Mapping[str, str], bytes]:
    """Headers and body."""
    body = msgspec.json.encode(error_body(problem))
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    return {**headers, **{name.lower(): value for name, value in problem.headers.items()}}, body


async def send_refusal(send: Send, problem: Problem, *, closes: bool = False) -> None:
    """As ASGI messages. `closes`: the connection, with it."""
    headers, body = refusal(problem)
    if closes:
        headers = {**headers, "connection": "close"}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def refusal_bytes(problem: Problem) -> bytes:
    """As HTTP/1.1, for a connection that is closed with it."""
    headers, body = refusal(problem)
    lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


__all__ = ("Refused", "refusal_bytes", "refused_to", "send_refusal")
