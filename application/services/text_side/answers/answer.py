"""The answer to one client request, as its client reads it: the choices of all prompts as one stream.

    OpenRequests ──► receive ──► Choice, where items wait ──► items ──► framing, or one whole body

Items wait in their choices only. The lease on the model ends with the last choice, however long the client reads.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from application.ports.engine import Ended, Engine, EngineItem
from application.services.text_side.answers.choice import Choice
from application.services.text_side.models.model_finder import ServedModel
from application.services.text_side.models.model_pool import ModelPool
from domain.errors import DomainError, RequestCancelled
from domain.id_row import IdRow
from domain.prefix.explanation import Explanation
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.request import FinishReason, GenerationRequest
from domain.request.stream import Admitted, Failed, Finished, PrefillProgress, StreamItem


@dataclass(frozen=True, slots=True)
class Progress:
    """`text`: `queued`, `prefill 512/2000` or `working`. Both counts are of prompt tokens, and 0 outside prefill."""

    text: str
    num_done: int = 0
    num_total: int = 0


class Reading(Protocol):
    """An answer as its reader sees it: an Answer, or one of several steps."""

    @property
    def prompts(self) -> list[IdRow]: ...

    @property
    def model(self) -> ServedModel: ...

    @property
    def num_choices(self) -> int: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def explanations(self) -> list[Explanation | None]: ...

    @property
    def progress(self) -> Progress: ...

    async def admitted(self, timeout_s: float) -> None: ...

    async def items(self, until_s: float | None = None) -> list[tuple[int, StreamItem]]: ...

    def __aiter__(self) -> AsyncIterator[tuple[int, StreamItem]]: ...


class Answer:
    """A Reading. One reader on the event loop iterates it for (choice, item) or awaits `items`. `close` it in any case,
    which cancels what still runs. Choices are numbered prompt by prompt. `encoded`: the prompts."""

    def __init__(self, engine: Engine, pool: ModelPool, leased: ServedModel | None = None) -> None:
        """Takes over a lease on `leased`, if there is one, in place of one by `lease`."""
        self.choices: list[Choice] = []
        self.encoded: list[EncodedPrompt] = []
        self.is_closed = False
        self._engine = engine
        self._pool = pool
        self._model = leased
        self._is_leased = leased is not None
        self._is_complete = False
        self._num_unread = 0
        self._wake = asyncio.Event()

    # ---- the engine's side -------------------------------------------------------------------------------------

    @property
    def prompts(self) -> list[IdRow]:
        """The token ids of each prompt."""
        return [prompt.token_ids for prompt in self.encoded]

    @property
    def model(self) -> ServedModel:
        """The model of all prompts, from the first `lease` on."""
        assert self._model is not None
        return self._model

    async def lease(self, request: GenerationRequest) -> None:
        """Leases the model of a request, unless the answer has its model. Raises as `ModelPool.acquire` does."""
        if self._model is None:
            self._model = await self._pool.acquire(request.model, request.needs)
            self._is_leased = True

    def add(self, prompt: EncodedPrompt, choices: Sequence[Choice]) -> None:
        """Adds the choices of a submitted prompt."""
        self.encoded.append(prompt)
        self.choices += choices
        self._num_unread += len(choices)

    def complete(self) -> None:
        """Notes that all prompts were submitted."""
        self._is_complete = True
        self._release_when_done()

    def receive(self, choice: Choice, item: EngineItem) -> None:
        """Adds the engine's next report of a choice, and asks the engine to stop if the choice ends by it. Raises what
        its parser raises: see `fail`."""
        if choice.outcome is not None:
            return
        choice.receive(item)
        self._changed(choice, is_reported=isinstance(item, Ended))

    def fail(self, choice: Choice, error: DomainError) -> None:
        """Ends a choice that cannot continue here, unless it has ended."""
        if choice.outcome is None:
            choice.fail(error)
            self._changed(choice, is_reported=False)

    def _changed(self, choice: Choice, *, is_reported: bool) -> None:
        self._wake.set()
        if choice.outcome is None:
            return
        if not is_reported:
            id, number = choice.request.id, choice.number
            if isinstance(choice.outcome, Finished):  # a stop string, or repetition
                num_tokens = choice.outcome.usage.completion_tokens
                self._engine.cancel(id, number, reason=FinishReason.STOP, num_tokens=num_tokens)
            else:
                self._engine.cancel(id, number)
        self._release_when_done()

    def _release_when_done(self) -> None:
        is_done = self._is_complete and all(choice.outcome is not None for choice in self.choices)
        if (is_done or self.is_closed) and self._is_leased:
            self._is_leased = False
            self._pool.release(self.model)

    # ---- the reader's side -------------------------------------------------------------------------------------

    @property
    def num_choices(self) -> int:
        return len(self.choices)

    @property
    def is_open(self) -> bool:
        """True until the end of every choice was read."""
        return self._num_unread > 0

    @property
    def explanations(self) -> list[Explanation | None]:
        """The explanation of each choice; None for one that was not admitted yet."""
        return [None if choice.admitted is None else choice.admitted.explanation for choice in self.choices]

    @property
    def progress(self) -> Progress:
        """The progress of the choice that is furthest behind."""
        latest = [choice.latest for choice in self.choices]
        if None in latest:
            return Progress("queued")
        for item in latest:
            if isinstance(item, PrefillProgress):
                return _prefill(item.num_done, item.num_total)
            if isinstance(item, Admitted):
                return _prefill(item.explanation.stopped_at, item.explanation.num_prompt)
        return Progress("working")

    async def admitted(self, timeout_s: float) -> None:
        """Waits until every choice was admitted, one has begun, or `timeout_s` has passed. Raises the error of a choice
        that failed before. Reads nothing."""
        try:
            async with asyncio.timeout(timeout_s):
                while not all(choice.admitted for choice in self.choices):
                    for begun in [choice.opening for choice in self.choices if choice.opening is not None]:
                        if (error := failure(begun)) is not None:
                            raise error
                        return
                    await self._wait()
        except TimeoutError:
            return

    async def items(self, until_s: float | None = None) -> list[tuple[int, StreamItem]]:
        """Returns all unread items, each with its choice's index, as soon as there are any; none when the loop's time
        `until_s` comes first. Cancelling it loses nothing."""
        while not (unread := self.take()):
            try:
                async with asyncio.timeout_at(until_s):
                    await self._wait()
            except TimeoutError:
                return []
        return unread

    async def __aiter__(self) -> AsyncIterator[tuple[int, StreamItem]]:
        while self.is_open:
            for entry in await self.items():
                yield entry

    def take(self) -> list[tuple[int, StreamItem]]:
        """Returns the unread items at once, possibly none: each choice's in order."""
        unread = [(index, item) for index, choice in enumerate(self.choices) for item in choice.take()]
        self._num_unread -= sum(isinstance(item, Finished | Failed) for _, item in unread)
        return unread

    def close(self) -> None:
        """Cancels the choices that have not ended, within one engine step. Idempotent."""
        if self.is_closed:
            return
        for id in dict.fromkeys(choice.request.id for choice in self.choices if choice.outcome is None):
            self._engine.cancel(id)
        self.is_closed = True  # last: other threads may read it, and rely on the cancellation
        for choice in self.choices:
            choice.close()
        self._release_when_done()

    async def _wait(self) -> None:
        await self._wake.wait()
        self._wake.clear()


def failure(item: StreamItem) -> DomainError | None:
    """The error to report for a choice that ends with this item; None where it ended well or has not ended. A choice
    that the server cancelled has failed: an answer cut short must not look complete."""
    if isinstance(item, Failed):
        return item.error
    if isinstance(item, Finished) and item.reason is FinishReason.CANCELLED:
        return RequestCancelled()
    return None


def _prefill(num_done: int, num_total: int) -> Progress:
    return Progress(f"prefill {num_done}/{num_total}", num_done, num_total)
