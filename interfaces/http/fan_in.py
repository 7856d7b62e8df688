"""Several generations read as one stream: the prompts of a request and the choices of each.

A choice's index counts prompt by prompt. Nothing is kept here but what was read ahead: a slow client's items wait, and
are merged, where the engine's arrive. `close` must be called in any case; it cancels whatever still runs.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from application.services.text_side.generation import Generation
from domain.explanation import Explanation
from domain.stream import Admitted, Failed, Finished, StreamItem


class FanIn:
    """For one consumer on the event loop. Owns the generations from the moment it exists. `explanations`: what each
    choice reuses, as far as it was admitted and that item was read or peeked at."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = tuple(generations)
        self._wake = asyncio.Event()
        self._wake.set()  # something may have arrived already
        self._offsets: list[int] = []
        self.num_choices = 0
        for generation in self.generations:
            generation.wake = self._wake
            self._offsets.append(self.num_choices)
            self.num_choices += generation.request.num_choices
        self.explanations: list[Explanation | None] = [None] * self.num_choices
        self._num_open = self.num_choices
        self._unseen: deque[tuple[int, StreamItem]] = deque()
        self._peeked: deque[tuple[int, StreamItem]] = deque()

    @property
    def is_open(self) -> bool:
        """True until every choice has finished or failed, and that was read."""
        return self._num_open > 0

    async def next(self) -> tuple[int, StreamItem]:
        """The next item and its choice's index. Cancelling it loses nothing."""
        return self._read(self._peeked.popleft() if self._peeked else await self._arrived())

    def ready(self) -> list[tuple[int, StreamItem]]:
        """What has arrived already, without waiting."""
        self._collect()
        entries = [*self._peeked, *self._unseen]
        self._peeked.clear()
        self._unseen.clear()
        return [self._read(self._noted(entry)) for entry in entries]

    async def peek(self) -> tuple[int, StreamItem]:
        """Wait for one more item and keep it for `next`. Cancelling it loses nothing."""
        entry = await self._arrived()
        self._peeked.append(entry)
        return entry

    def close(self) -> None:
        """Idempotent."""
        for generation in self.generations:
            generation.close()

    async def _arrived(self) -> tuple[int, StreamItem]:
        while not self._unseen:
            self._collect()
            if not self._unseen:
                await self._wake.wait()
                self._wake.clear()
        return self._noted(self._unseen.popleft())

    def _collect(self) -> None:
        for offset, generation in zip(self._offsets, self.generations, strict=True):
            self._unseen.extend((offset + choice, item) for choice, item in generation.take())

    def _noted(self, entry: tuple[int, StreamItem]) -> tuple[int, StreamItem]:
        index, item = entry
        if isinstance(item, Admitted):
            self.explanations[index] = item.explanation
        return entry

    def _read(self, entry: tuple[int, StreamItem]) -> tuple[int, StreamItem]:
        if isinstance(entry[1], Finished | Failed):
            self._num_open -= 1
        return entry


__all__ = ("FanIn",)
