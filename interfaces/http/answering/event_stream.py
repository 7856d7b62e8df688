"""A streamed answer: items in, bytes out, and the dialect's keep-alive when nothing was sent for too long.

Nothing is sent before its requests have been admitted (or wait for too long), so that the headers can report the reuse
and an earlier failure has a status. The answer is closed however the response ends: complete, cut off, or never begun.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from litestar.connection import Request
from litestar.response.base import ASGIResponse, Response
from litestar.response.streaming import ASGIStreamingResponse
from litestar.types import Receive, Scope, Send

from application.services.text_side.answers.answer import Answer, failure
from domain.errors import ComputeFailed, DomainError
from domain.request.stream import StreamItem
from interfaces.http.answering import sse
from interfaces.http.answering.dialect import Framing
from interfaces.http.answering.documented import cache_headers

_log = logging.getLogger("cairn.http")

HEADERS_BY_S = 1.0
"""Clients and proxies give up on servers that send no headers; a request still queued by then says `pending`."""


class _ReleasingResponse(ASGIStreamingResponse):
    """A response that runs `release` after its body. A generator's own `finally` is not enough: it never runs if the
    generator was not begun."""

    def __init__(self, release: Callable[[], None], iterator: AsyncIterator[bytes], **options: Any) -> None:
        super().__init__(iterator=iterator, **options)  # pyright: ignore[reportUnknownMemberType]
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


class EventStream(Response[Any]):
    """The response of a stream, of `media_type`. Litestar stops reading `events` as soon as the client disconnects;
    `release` is idempotent."""

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


async def open_stream(answer: Answer, framing: Framing, keepalive_s: float, media_type: str) -> EventStream:
    """The response that streams `answer`, once that is admitted or HEADERS_BY_S have passed. The response then owns the
    answer. Raises the answer's error if it fails before."""
    await answer.admitted(min(keepalive_s, HEADERS_BY_S))
    headers = cache_headers(answer.explanations)
    return EventStream(stream_events(answer, framing, keepalive_s), answer.close, headers, media_type)


async def stream_events(answer: Answer, framing: Framing, keepalive_s: float) -> AsyncIterator[bytes]:
    """The bytes of the stream. Closes `answer` in the end; an error becomes an event, as the status has been sent
    already."""
    try:
        if opening := framing.begin():
            yield opening
        keep_alive_at_s = _now_s() + keepalive_s
        while answer.is_open:
            items = await answer.items(keep_alive_at_s)
            data, error = _framed(items, framing) if items else (framing.keep_alive(answer.progress), None)
            if data:
                yield data
            if data or not items:
                keep_alive_at_s = _now_s() + keepalive_s
            if error is not None:
                raise error
        yield framing.end()
    except DomainError as error:
        yield framing.fail(error)
    except Exception:
        _log.exception("a stream broke")
        yield framing.fail(ComputeFailed("internal error; the server's log has the details"))
    finally:
        answer.close()


def _framed(items: Sequence[tuple[int, StreamItem]], framing: Framing) -> tuple[bytes, DomainError | None]:
    """The bytes of items that arrived together, and the error that ends them if there is one."""
    parts: list[bytes] = []
    for index, item in items:
        if (error := failure(item)) is not None:
            return b"".join(parts), error
        parts.append(framing.feed(index, item))
    return b"".join(parts), None


def _now_s() -> float:
    return asyncio.get_running_loop().time()
