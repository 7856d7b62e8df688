"""A streamed answer: items in, bytes out, and the dialect's keep-alive when nothing was sent for too long.

Nothing is sent before its requests have been admitted (or wait for too long), so that the headers can report the reuse
and an earlier failure has a status. Litestar stops reading a stream as soon as its client disconnects; the request's
context closes the answer then.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from litestar.response import Stream

from application.services.text_side.answers.answer import Answer, failure
from domain.errors import ComputeFailed, DomainError
from domain.request.stream import StreamItem
from interfaces.http.answering.dialect import Framing
from interfaces.http.answering.documented import cache_headers

_log = logging.getLogger("cairn.http")

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""The headers that keep caches and proxies from buffering a stream."""

HEADERS_BY_S = 1.0
"""Clients and proxies give up on servers that send no headers; a request still queued by then says `pending`."""


async def open_stream(answer: Answer, framing: Framing, keepalive_s: float, media_type: str) -> Stream:
    """The response that streams `answer`, once that is admitted or HEADERS_BY_S have passed. Raises the answer's error
    if it fails before."""
    await answer.admitted(min(keepalive_s, HEADERS_BY_S))
    headers = {**HEADERS, **cache_headers(answer.explanations)}
    return Stream(stream_events(answer, framing, keepalive_s), media_type=media_type, headers=headers)


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
