"""Carries stream items from the compute thread to the coroutines that wait for them: one wake-up a step.

A consumer slower than its model does not grow memory without bound: text that piles up is merged into one delta when it
is read, at a cost that is linear in what piled up, and a stream that holds `max_held_bytes` unread ends with Failed.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from application.services.text_side.unread_text import UnreadText, held_bytes
from domain.errors import ServerUnavailable
from domain.ids import RequestId
from domain.stream import Failed, Finished, PrefillProgress, StreamItem, TextDelta

MERGE_ABOVE = 32
"""Items waiting for a consumer before further ones of the same kind are merged."""

MAX_HELD_BYTES = 16 * 2**20
"""Estimated: 150,000 tokens of text, or 5,000 with twenty alternatives each."""

OnEnd = Callable[[StreamItem], None]


def _nothing(_item: StreamItem) -> None:
    return


class RequestStream:
    """The items of one request, in order; ends after Finished or Failed. For one consumer on the event loop."""

    __slots__ = ("_held_bytes", "_items", "_max_held_bytes", "_wake", "end", "on_end")

    def __init__(self, on_end: OnEnd = _nothing, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self._items: deque[StreamItem | UnreadText] = deque()
        self._wake = asyncio.Event()
        self._held_bytes = 0
        self._max_held_bytes = max_held_bytes
        self.on_end = on_end
        self.end: Finished | Failed | None = None
        """The last item, from the moment it was pushed; nothing is taken after it."""

    @property
    def num_items(self) -> int:
        """What waits to be read; merged text is one item."""
        return len(self._items)

    def push(self, item: StreamItem) -> None:
        """Event loop only."""
        if self.end is not None:
            return
        if isinstance(item, Finished | Failed):
            self.end = item
        elif isinstance(item, TextDelta):
            self._held_bytes += held_bytes(item)
            if self._held_bytes > self._max_held_bytes:
                self._overflow()
                return
        if len(self._items) <= MERGE_ABOVE or not self._merge(item):
            self._items.append(item)
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[StreamItem]:
        while True:
            while self._items:
                item = self._items.popleft()
                if isinstance(item, UnreadText):
                    item = item.joined()
                if isinstance(item, TextDelta):
                    self._held_bytes -= held_bytes(item)
                yield item
                if isinstance(item, Finished | Failed):
                    return
            self._wake.clear()
            await self._wake.wait()

    def _merge(self, item: StreamItem) -> bool:
        last = self._items[-1]
        if isinstance(last, UnreadText) and isinstance(item, TextDelta):
            last.add(item)
        elif isinstance(last, TextDelta) and isinstance(item, TextDelta):
            self._items[-1] = UnreadText(last, item)
        elif isinstance(last, PrefillProgress) and isinstance(item, PrefillProgress):
            self._items[-1] = item
        else:
            return False
        return True

    def _overflow(self) -> None:
        """What came before is lost with it: an answer with a gap would be a wrong one."""
        self.end = Failed(ServerUnavailable(f"more than {self._max_held_bytes} bytes of the answer were not read"))
        self._items.clear()
        self._items.append(self.end)
        self._wake.set()


class StreamHub:
    """An OutputSink. `open` and `discard` on the event loop, `deliver` on the compute thread."""

    def __init__(self, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        """`max_held_bytes`: what one stream may hold unread, as estimated by `held_bytes`."""
        self._max_held_bytes = max_held_bytes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[RequestId, RequestStream] = {}

    def open(self, id: RequestId, on_end: OnEnd = _nothing) -> RequestStream:
        """Start to receive a request's items. Must precede its submission. `on_end` is called once, with Finished or
        Failed as soon as that has arrived, read or not; never after `discard`."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop and not self._loop.is_closed():
            raise ServerUnavailable("this server already runs on another event loop")
        self._loop = loop
        stream = RequestStream(on_end, self._max_held_bytes)
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
        ended: list[RequestStream] = []
        for id, item in batch:
            stream = self._streams.get(id)
            if stream is not None and stream.end is None:
                stream.push(item)
                if stream.end is not None:
                    ended.append(stream)
        for stream in ended:  # after everybody has what is theirs
            if stream.end is not None:
                stream.on_end(stream.end)


__all__ = ("MAX_HELD_BYTES", "MERGE_ABOVE", "RequestStream", "StreamHub")
