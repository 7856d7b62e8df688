"""What streamed chat and text completions have in common: chunks, usage if asked for, `[DONE]`, comments meanwhile."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from application.services.text_side.answers.answer import Progress
from domain.errors import DomainError
from domain.request.request import Usage
from domain.request.stream import ContentDelta, Finished, PromptLogprobs, StreamItem, TokenLogprob, ToolCallDelta
from interfaces.http.answering import sse
from interfaces.http.answering.dialect import Framing, Started
from interfaces.http.openai.completion_fields import CompletionFields
from interfaces.http.openai.errors import error_event
from interfaces.http.openai.usage import UsageBody, usage_body

ChoiceT = TypeVar("ChoiceT")


class ChunkFraming(Framing, Generic[ChoiceT]):
    """`usage` is null in every chunk but the last when it was asked for, else absent."""

    def __init__(self, fields: CompletionFields, started: Started) -> None:
        self._includes_usage = fields.includes_usage
        self._started = started
        self._encoder = msgspec.json.Encoder()
        self._usages: dict[int, Usage] = {}

    def feed(self, index: int, item: StreamItem) -> bytes:
        if isinstance(item, Finished):
            self._usages[index] = item.usage
            return self._encoded([self._last(index, item)])
        if isinstance(item, PromptLogprobs):
            return self._scored(index, item.scores)
        choice = self._content(index, item) if isinstance(item, ContentDelta) else None
        return self._encoded([choice]) if choice is not None else b""

    def keep_alive(self, progress: Progress) -> bytes:
        return sse.comment(progress.text)

    def end(self) -> bytes:
        if not self._includes_usage:
            return sse.DONE
        usages = [self._usages[index] for index in range(self._started.num_choices)]
        return self._encoded([], usage_body(usages, self._started.choices_per_prompt)) + sse.DONE

    def fail(self, error: DomainError) -> bytes:
        return error_event(error)

    def _encoded(self, choices: Sequence[ChoiceT], usage: UsageBody | None = None) -> bytes:
        chunk = self._chunk(list(choices), usage if self._includes_usage else UNSET)
        return sse.event(self._encoder.encode(chunk))

    @abstractmethod
    def _chunk(self, choices: list[ChoiceT], usage: UsageBody | UnsetType | None) -> Struct: ...

    @abstractmethod
    def _scored(self, index: int, scores: Sequence[TokenLogprob | None]) -> bytes:
        """Log probabilities of the prompt whose first choice is `index`."""
        ...

    @abstractmethod
    def _content(self, index: int, delta: ContentDelta) -> ChoiceT | None:
        """None: nothing to tell yet."""
        ...

    @abstractmethod
    def _last(self, index: int, finished: Finished) -> ChoiceT: ...


def plain_text(delta: ContentDelta) -> str:
    """What the model wrote, without the marks of its kind: reasoning as it is, a tool call as name and arguments."""
    return delta.name + delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
