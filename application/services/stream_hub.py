"""Carries stream items from the compute thread to the coroutines that wait for them: one wake-up a step.

A consumer slower than its model does not grow memory without bound: text that piles up is merged into one delta.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from domain.errors import ServerUnavailable
from domain.ids import RequestId
from domain.stream import Failed, Finished, PrefillProgress, StreamItem, TextDelta

MERGE_ABOVE = 32
"""Items waiting for a consumer before further ones of the same kind are merged."""


class RequestStream:
    """The items of one request, in order; ends after Finished or Failed. For one consumer on the event loop."""

    __slots__ = ("_items", "_wake")

    def __init__(self) -> None:
        self._items: deque[StreamItem] = deque()
        self._wake = asyncio.Event()

    def push(self, item: StreamItem) -> None:
        """Event loop only."""
        if len(self._items) > MERGE_ABOVE and (merged := _merge(self._items[-1], item)) is not None:
            self._items[-1] = merged
        else:
            self._items.append(item)
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[StreamItem]:
        while True:
            while self._items:
                item = self._items.popleft()
                yield item
                if isinstance(item, Finished | Failed):
                    return
            self._wake.clear()
            await self._wake.wait()


def _merge(last: StreamItem, item: StreamItem) -> StreamItem | None:
    if isinstance(last, TextDelta) and isinstance(item, TextDelta):
        return TextDelta(last.text + item.text, last.token_ids + item.token_ids, last.logprobs + item.logprobs)
    if isinstance(last, PrefillProgress) and isinstance(item, PrefillProgress):
        return item
    return None


class StreamHub:
    """An OutputSink. `open` and `discard` on the event loop, `deliver` on the compute thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[RequestId, RequestStream] = {}

    def open(self, id: RequestId) -> RequestStream:
        """Start to receive a request's items. Must precede its submission."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop and not self._loop.is_closed():
            raise ServerUnavailable("this server already runs on another event loop")
        self._loop = loop
        stream = RequestStream()
        self._streams[id] = stream
        return stream

    def discard(self, id: RequestId) -> None:
        """Stop receiving; items still under way are dropped."""
        self._streams.pop(id, None)

    def __len__(self) -> int:
        return len(self._streams)

    def deliver(self, batch: Sequence[tuple[RequestId, StreamItem]]) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(self._dispatch, batch)
        except RuntimeError:  # the loop closed between the check and the call: nobody is left to tell
            return

    def _dispatch(self, batch: Sequence[tuple[RequestId, StreamItem]]) -> None:
        for id, item in batch:
            if (stream := self._streams.get(id)) is not None:
                stream.push(item)


__all__ = ("RequestStream", "StreamHub")
