"""Drives a streamed answer: items in, bytes out, a comment whenever nothing was sent for too long.

The dialect's framing decides what the bytes are and never waits, so transcripts can be tested without a server.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from domain.errors import ComputeFailed, DomainError
from domain.stream import Failed, Finished, StreamItem
from interfaces.http import sse
from interfaces.http.collected import whole
from interfaces.http.fan_in import FanIn
from interfaces.http.keep_alive import KeepAlive

_log = logging.getLogger("cairn.http")


class Framing(Protocol):
    """One answer's wire shape. Each method returns complete events, possibly none (empty bytes)."""

    def begin(self) -> bytes: ...

    def feed(self, index: int, item: StreamItem) -> bytes:
        """Never given Failed."""
        ...

    def end(self) -> bytes:
        """After every choice has finished."""
        ...

    def fail(self, error: DomainError) -> bytes:
        """Instead of `end`."""
        ...


async def stream_events(choices: FanIn, framing: Framing, keepalive_s: float) -> AsyncIterator[bytes]:
    """Closes `choices` however it ends; an error becomes an event, for the status has gone out already."""
    try:
        if opening := framing.begin():
            yield opening
        keep_alive = KeepAlive(len(choices.generations))
        while choices.is_open:
            data = await _next_bytes(choices, framing, keep_alive, keepalive_s)
            yield data or sse.comment(keep_alive.text)
        yield framing.end()
    except DomainError as error:
        yield framing.fail(error)
    except Exception:
        _log.exception("a stream broke")
        yield framing.fail(ComputeFailed("internal error; the server's log has the details"))
    finally:
        choices.close()


async def _next_bytes(choices: FanIn, framing: Framing, keep_alive: KeepAlive, keepalive_s: float) -> bytes:
    """The next events; empty after `keepalive_s` of silence, or when the last item shows nothing."""
    try:
        async with asyncio.timeout(keepalive_s):
            while choices.is_open:
                items = [await choices.next(), *choices.ready()]
                if data := _frame(items, framing, keep_alive):
                    return data
    except TimeoutError:
        pass
    return b""


def _frame(items: Sequence[tuple[int, StreamItem]], framing: Framing, keep_alive: KeepAlive) -> bytes:
    """Everything that arrived together goes out together."""
    parts: list[bytes] = []
    for index, item in items:
        if isinstance(item, Failed):
            raise item.error
        if isinstance(item, Finished):
            whole(item)
        keep_alive.feed(index, item)
        parts.append(framing.feed(index, item))
    return b"".join(parts)


__all__ = ("Framing", "stream_events")
