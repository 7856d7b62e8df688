"""What one client reads: the choices of all prompts of its request, as one stream.

Items wait in their choices only, where they are bounded and merged; the answer holds none.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from application.services.text_side.answers.generation import Generation
from domain.errors import DomainError, RequestCancelled
from domain.prefix.explanation import Explanation
from domain.request.request import FinishReason
from domain.request.stream import Admitted, Failed, Finished, PrefillProgress, StreamItem


@dataclass(frozen=True, slots=True)
class Progress:
    """`text`: `queued`, `prefill 512/2000` or `working`. The prompt's tokens are 0 unless it is being computed."""

    text: str
    num_done: int = 0
    num_total: int = 0


class Answer:
    """For one reader on the event loop, which iterates it for (choice, item) or asks for `items`. Owns the generations
    from the moment it exists: `close` it in any case, which cancels whatever still runs. A choice's index counts prompt
    by prompt."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = tuple(generations)
        self._choices = [choice for generation in self.generations for choice in generation.choices]
        self._num_open = len(self._choices)
        self._wake = asyncio.Event()
        for generation in self.generations:
            generation.wake = self._wake

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    @property
    def is_open(self) -> bool:
        """True until the end of every choice was read."""
        return self._num_open > 0

    @property
    def explanations(self) -> list[Explanation | None]:
        """What each choice reuses; None for one that was not admitted yet."""
        return [None if choice.admitted is None else choice.admitted.explanation for choice in self._choices]

    @property
    def progress(self) -> Progress:
        """Of the choice that is furthest behind."""
        latest = [choice.latest for choice in self._choices]
        if None in latest:
            return Progress("queued")
        for item in latest:
            match item:
                case PrefillProgress(num_done=num_done, num_total=num_total):
                    return _prefill(num_done, num_total)
                case Admitted(explanation=found):
                    return _prefill(found.stopped_at, found.num_prompt)
                case _:
                    pass
        return Progress("working")

    async def admitted(self, timeout_s: float) -> None:
        """Wait until every choice was admitted, one has begun, or `timeout_s` has passed. Raises the error of a choice
        that failed before. Nothing is read by it."""
        try:
            async with asyncio.timeout(timeout_s):
                while not all(choice.admitted for choice in self._choices):
                    for begun in [choice.opening for choice in self._choices if choice.opening is not None]:
                        if (error := failure(begun)) is not None:
                            raise error
                        return
                    await self._changed()
        except TimeoutError:
            return

    async def items(self, until_s: float | None = None) -> list[tuple[int, StreamItem]]:
        """All that is unread, each with its choice's index, as soon as there is something; nothing when nothing comes
        until the loop's time `until_s`. Cancelling it loses nothing."""
        while not (unread := self.take()):
            try:
                async with asyncio.timeout_at(until_s):
                    await self._changed()
            except TimeoutError:
                return []
        return unread

    async def __aiter__(self) -> AsyncIterator[tuple[int, StreamItem]]:
        while self.is_open:
            for entry in await self.items():
                yield entry

    def take(self) -> list[tuple[int, StreamItem]]:
        """All that is unread by now: each choice's items in order."""
        unread = [(index, item) for index, choice in enumerate(self._choices) for item in choice.take()]
        self._num_open -= sum(isinstance(item, Finished | Failed) for _, item in unread)
        return unread

    def close(self) -> None:
        """Idempotent."""
        for generation in self.generations:
            generation.close()

    async def _changed(self) -> None:
        await self._wake.wait()
        self._wake.clear()


def failure(item: StreamItem) -> DomainError | None:
    """The error to report for a choice that ends with this item, if it ends badly. One that the server cancelled does:
    an answer cut short must not look complete."""
    if isinstance(item, Failed):
        return item.error
    if isinstance(item, Finished) and item.reason is FinishReason.CANCELLED:
        return RequestCancelled()
    return None


def _prefill(num_done: int, num_total: int) -> Progress:
    return Progress(f"prefill {num_done}/{num_total}", num_done, num_total)
