"""A streamed response that releases what it holds however it ends: to its end, cut off, or never begun.

Nothing is sent before its requests have been admitted (or wait for too long), so that the headers can say what is
reused and what fails until then has a status.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from litestar.connection import Request
from litestar.response.base import ASGIResponse, Response
from litestar.response.streaming import ASGIStreamingResponse
from litestar.types import Receive, Scope, Send

from interfaces.http import sse
from interfaces.http.admission import until_admitted
from interfaces.http.cache_header import cache_headers
from interfaces.http.dialect import Framing
from interfaces.http.fan_in import FanIn
from interfaces.http.stream_events import stream_events

HEADERS_BY_S = 1.0
"""Clients and proxies give up on servers that send no headers; a request still queued by then says `pending`."""


class _ReleasingResponse(ASGIStreamingResponse):
    """Runs `release` after the body. A generator's own `finally` is not enough: it never runs if nobody began it."""

    def __init__(self, release: Callable[[], None], iterator: AsyncIterator[bytes], **options: Any) -> None:
        super().__init__(iterator=iterator, **options)  # pyright: ignore[reportUnknownMemberType]
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


class EventStream(Response[Any]):
    """What a framing makes, of `media_type`. Litestar stops reading `events` as soon as the client leaves; `release` is
    idempotent."""

    def __init__(
        self, events: AsyncIterator[bytes], release: Callable[[], None], headers: Mapping[str, str], media_type: str
    ) -> None:
        super().__init__(b"", media_type=media_type, headers={**sse.HEADERS, **headers}, status_code=200)
        self._events = events
        self._release = release

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **options: Any) -> ASGIResponse:
        headers: dict[str, str] = {**(options.get("headers") or {}), **self.headers}
        return _ReleasingResponse(
            self._release,
            self._events,
            headers=headers,
            cookies=options.get("cookies"),
            media_type=self.media_type,
            status_code=self.status_code,
        )


async def open_stream(choices: FanIn, framing: Framing, keepalive_s: float, media_type: str) -> EventStream:
    """The response that streams `choices`, once there is something to say or HEADERS_BY_S passed. Owns them from when
    it returns: they are closed when the stream ends. Raises what they fail with before."""
    await until_admitted(choices, min(keepalive_s, HEADERS_BY_S))
    headers = cache_headers(choices.explanations)
    return EventStream(stream_events(choices, framing, keepalive_s), choices.close, headers, media_type)


__all__ = ("EventStream", "open_stream")
