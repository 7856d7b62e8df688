"""Drives a streamed answer: items in, bytes out, and the dialect's sign of life when nothing was sent for too long."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from domain.errors import ComputeFailed, DomainError
from domain.stream import StreamItem
from interfaces.http.collected import failure
from interfaces.http.dialect import Framing
from interfaces.http.fan_in import FanIn
from interfaces.http.keep_alive import KeepAlive

_log = logging.getLogger("cairn.http")


async def stream_events(choices: FanIn, framing: Framing, keepalive_s: float) -> AsyncIterator[bytes]:
    """Closes `choices` however it ends; an error becomes an event, for the status has gone out already."""
    try:
        if opening := framing.begin():
            yield opening
        keep_alive = KeepAlive(choices.num_choices)
        speak_by = _now_s() + keepalive_s
        while choices.is_open:
            items = await _items(choices, speak_by)
            data, error = _frame(items, framing, keep_alive)
            if not items:
                data = framing.keep_alive(keep_alive.progress)
            if data:
                yield data
            if data or not items:
                speak_by = _now_s() + keepalive_s
            if error is not None:
                raise error
        yield framing.end()
    except DomainError as error:
        yield framing.fail(error)
    except Exception:
        _log.exception("a stream broke")
        yield framing.fail(ComputeFailed("internal error; the server's log has the details"))
    finally:
        choices.close()


async def _items(choices: FanIn, until_s: float) -> list[tuple[int, StreamItem]]:
    """Everything that has arrived, at least one item; nothing if none comes in time."""
    try:
        async with asyncio.timeout_at(until_s):
            return [await choices.next(), *choices.ready()]
    except TimeoutError:
        return []


def _frame(
    items: Sequence[tuple[int, StreamItem]], framing: Framing, keep_alive: KeepAlive
) -> tuple[bytes, DomainError | None]:
    """What arrived together goes out together: the bytes, and the error that ends them if there is one."""
    parts: list[bytes] = []
    for index, item in items:
        keep_alive.feed(index, item)
        if (error := failure(item)) is not None:
            return b"".join(parts), error
        parts.append(framing.feed(index, item))
    return b"".join(parts), None


def _now_s() -> float:
    return asyncio.get_running_loop().time()


__all__ = ("stream_events",)
