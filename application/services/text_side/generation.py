"""A submitted request as its reader sees it: the items of all its choices, from the engine's tokens to text.

A choice ends for its reader when a stop string completes, when it cannot go on here (its text cannot be made, nobody
reads it), or when the engine ends it, whichever comes first. The engine is then told, and what it still sends is
dropped. The lease on the model is over when all choices have ended, however long the client takes to read.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from application.ports.content_sink import ContentSink
from application.ports.engine import Ended, Engine, EngineItem, Submission, Tokens
from application.services.text_side.output_pipeline import OutputPipeline
from application.services.text_side.served_model import ServedModel
from application.services.text_side.unread import MAX_HELD_BYTES, Unread
from domain.errors import DomainError, ServerUnavailable
from domain.request import FinishReason, GenerationRequest, Usage, choice_id
from domain.stream import Admitted, ContentDelta, Failed, Finished, StreamItem


@dataclass(slots=True)
class _Choice:
    """`usage` without completion tokens. `outcome`: what its reader is told at the end."""

    pipeline: OutputPipeline
    unread: Unread
    usage: Usage
    outcome: Finished | Failed | None = None


class Generation:
    """Iterate it once for (choice, item); `close` it in any case, which cancels what still runs. Event loop only."""

    def __init__(
        self,
        request: GenerationRequest,
        submission: Submission,
        *,
        model: ServedModel,
        engine: Engine,
        pipelines: Sequence[OutputPipeline],
        release: Callable[[], None],
        max_held_bytes: int = MAX_HELD_BYTES,
        content: ContentSink | None = None,
    ) -> None:
        """`pipelines`: one a choice. `release`: gives the lease on the model back; called once. `content`: None where
        nobody is told what is said."""
        self.request = request
        self.prompt_ids = submission.prompt.token_ids
        self.model = model
        self.wake = asyncio.Event()
        """Set when there is something to take; a reader of several generations gives them all the same."""
        self.is_closed = False
        self._engine = engine
        self._release: Callable[[], None] | None = release
        self._content = content
        usage = Usage(len(self.prompt_ids), 0)
        self._choices = [_Choice(pipeline, Unread(max_held_bytes), usage) for pipeline in pipelines]
        self._num_in_engine = len(self._choices)

    @property
    def is_in_engine(self) -> bool:
        """Whether the engine has not ended all choices yet."""
        return self._num_in_engine > 0

    def receive(self, number: int, item: EngineItem) -> None:
        """Take in what the engine tells of a choice. May raise what its parser raises: see `fail`."""
        choice = self._choices[number]
        if choice.outcome is None and (not self.is_closed or isinstance(item, Ended)):
            self._take_in(number, choice, item)

    def left_engine(self, number: int) -> Finished | Failed | None:
        """The engine is done with a choice, and what it told at last was received. Returns how it ended."""
        self._num_in_engine -= 1
        return self._choices[number].outcome

    def pipeline(self, number: int) -> OutputPipeline:
        """What a choice's tokens go through."""
        return self._choices[number].pipeline

    def fail(self, number: int, error: DomainError) -> None:
        """This choice cannot go on here."""
        choice = self._choices[number]
        if choice.outcome is None:
            self._engine.cancel(self.request.id, number)
            self._end(choice, Failed(error, _counted(choice)))

    def take(self) -> list[tuple[int, StreamItem]]:
        """What has not been read yet: each choice's items in order."""
        return [(number, item) for number, choice in enumerate(self._choices) for item in choice.unread.take()]

    async def __aiter__(self) -> AsyncIterator[tuple[int, StreamItem]]:
        num_open = len(self._choices)
        while num_open:
            await self.wake.wait()
            self.wake.clear()
            for number, item in self.take():
                num_open -= isinstance(item, Finished | Failed)
                yield number, item

    def close(self) -> None:
        """Idempotent. Cancels within one engine step what has not ended."""
        if self.is_closed:
            return
        self.is_closed = True
        if any(choice.outcome is None for choice in self._choices):
            self._engine.cancel(self.request.id)
        for choice in self._choices:
            choice.unread.clear()
        self._give_back()

    def _take_in(self, number: int, choice: _Choice, item: EngineItem) -> None:
        match item:
            case Ended():
                self._take_end(number, choice, item)
            case Tokens():
                step = choice.pipeline.feed(item)
                for delta in step.deltas:
                    self._tell(number, delta)
                    self._push(number, choice, delta)
                if step.stop_text is not None and choice.outcome is None:
                    usage = _counted(choice)
                    num_tokens = usage.completion_tokens
                    self._engine.cancel(self.request.id, number, reason=FinishReason.STOP, num_tokens=num_tokens)
                    self._end(choice, choice.pipeline.ended(FinishReason.STOP, usage, step.stop_text))
            case _:
                if isinstance(item, Admitted):
                    choice.usage = Usage.of(item.explanation, 0)
                self._push(number, choice, item)

    def _take_end(self, number: int, choice: _Choice, item: Ended) -> None:
        if item.error is not None:
            self._end(choice, Failed(item.error.to_error(), item.usage))
        elif item.reason is None or item.reason is FinishReason.CANCELLED or self.is_closed:
            self._end(choice, Finished(item.reason or FinishReason.CANCELLED, item.usage))
        else:
            step = choice.pipeline.finish()
            for delta in step.deltas:
                self._tell(number, delta)
                choice.unread.push(delta)
            reason = item.reason if step.stop_text is None else FinishReason.STOP
            self._end(choice, choice.pipeline.ended(reason, item.usage, step.stop_text))

    def _tell(self, number: int, delta: ContentDelta) -> None:
        if self._content is not None:
            self._content.answered(choice_id(self.request.id, number), delta)

    def _push(self, number: int, choice: _Choice, item: StreamItem) -> None:
        if choice.outcome is not None:
            return
        if choice.unread.push(item):
            self.wake.set()
        else:  # what came before is lost with it: an answer with a gap would be a wrong one
            choice.unread.clear()
            most = choice.unread.max_held_bytes
            self.fail(number, ServerUnavailable(f"more than {most} bytes of the answer were not read"))

    def _end(self, choice: _Choice, outcome: Finished | Failed) -> None:
        choice.outcome = outcome
        if not self.is_closed:
            choice.unread.push(outcome)
            self.wake.set()
        if all(choice.outcome is not None for choice in self._choices):
            self._give_back()

    def _give_back(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


def _counted(choice: _Choice) -> Usage:
    """With the tokens that the reader has been told of."""
    return replace(choice.usage, completion_tokens=choice.pipeline.num_tokens)


__all__ = ("Generation",)
