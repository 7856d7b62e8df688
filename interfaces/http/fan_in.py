"""Several generations read as one stream: the choices of a request, in the order their items arrive.

One task a generation moves items into a small bounded queue, so that a slow client never grows memory: what piles up
is merged where it waits. `close` must be called in any case; it cancels whatever still runs.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from application.use_cases.generate import Generation
from domain.errors import ComputeFailed
from domain.explanation import Explanation
from domain.stream import Admitted, Failed, Finished, StreamItem

QUEUE_ITEMS = 16

_log = logging.getLogger("cairn.http")


class FanIn:
    """For one consumer on the event loop. Owns the generations from the moment it exists. `explanations`: what each
    generation reuses, as far as it was admitted and that item was read or peeked at."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = tuple(generations)
        self.explanations: list[Explanation | None] = [None] * len(self.generations)
        self._queue: asyncio.Queue[tuple[int, StreamItem]] = asyncio.Queue(QUEUE_ITEMS)
        self._held: deque[tuple[int, StreamItem]] = deque()
        self._num_open = len(self.generations)
        self._pumps = [asyncio.create_task(self._pump(index)) for index in range(len(self.generations))]

    @property
    def is_open(self) -> bool:
        """True until every generation has finished or failed."""
        return self._num_open > 0

    async def next(self) -> tuple[int, StreamItem]:
        """The next item and the index of its generation. Cancelling it loses nothing."""
        return self._note(self._held.popleft() if self._held else await self._queue.get())

    def ready(self) -> list[tuple[int, StreamItem]]:
        """What has arrived already, without waiting."""
        held = [self._note(self._held.popleft()) for _ in range(len(self._held))]
        return held + [self._note(self._queue.get_nowait()) for _ in range(self._queue.qsize())]

    async def peek(self) -> tuple[int, StreamItem]:
        """Wait for one more item and keep it for `next`. Cancelling it loses nothing."""
        entry = await self._queue.get()
        self._held.append(entry)
        self._note_admission(entry)
        return entry

    def close(self) -> None:
        """Idempotent."""
        for pump in self._pumps:
            pump.cancel()
        for generation in self.generations:
            generation.close()

    def _note_admission(self, entry: tuple[int, StreamItem]) -> None:
        index, item = entry
        if isinstance(item, Admitted):
            self.explanations[index] = item.explanation

    def _note(self, entry: tuple[int, StreamItem]) -> tuple[int, StreamItem]:
        self._note_admission(entry)
        if isinstance(entry[1], Finished | Failed):
            self._num_open -= 1
        return entry

    async def _pump(self, index: int) -> None:
        try:
            async for item in self.generations[index]:
                await self._queue.put((index, item))
        except Exception:
            _log.exception("a stream of request %s broke", self.generations[index].request.id)
            await self._queue.put((index, Failed(ComputeFailed("the stream broke"))))


__all__ = ("FanIn",)
