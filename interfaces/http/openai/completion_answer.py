"""The answer to a text completion: one body, or a stream of chunks of the same shape."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from domain.errors import DomainError
from domain.request import Usage
from domain.stream import Finished, StreamItem, TextDelta
from interfaces.http import sse
from interfaces.http.collected import Collected
from interfaces.http.openai.answer import AnswerContext, finish_reason
from interfaces.http.openai.errors import error_event
from interfaces.http.openai.logprobs import CompletionLogprobs, completion_logprobs
from interfaces.http.openai.usage import UsageBody, usage_body


class CompletionChoice(Struct):
    """`prompt_token_ids` comes with a streamed choice's first chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(Struct, tag_field="object", tag="text_completion"):
    """A whole answer or a chunk. `usage` is null in every chunk but the last when it was asked for, else absent."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET


def completion(context: AnswerContext, collected: Sequence[Collected]) -> Completion:
    choices = [_choice(context, index, choice) for index, choice in enumerate(collected)]
    usages = [choice.finished.usage if choice.finished else None for choice in collected]
    usage = usage_body(usages, context.choices_per_prompt)
    return Completion(context.id, context.created, context.model, choices, usage=usage)


def _choice(context: AnswerContext, index: int, choice: Collected) -> CompletionChoice:
    body = CompletionChoice(index, context.echo(index) + choice.text, finish_reason=finish_reason(choice.finished))
    if context.has_logprobs:
        body.logprobs = completion_logprobs(choice.deltas, context.tokenizer, 0)
    if context.returns_token_ids:
        body.token_ids = choice.token_ids
        body.prompt_token_ids = context.prompt_ids(index)
    return body


class CompletionFraming:
    """A Framing: the echoed prompt if asked for, text, a finish chunk a choice, usage if asked for, `[DONE]`."""

    def __init__(self, context: AnswerContext) -> None:
        self._context = context
        self._encoder = msgspec.json.Encoder()
        self._usages: list[Usage | None] = [None] * context.num_choices
        self._num_chars = [0] * context.num_choices

    def begin(self) -> bytes:
        if not self._context.echoes and not self._context.returns_token_ids:
            return b""
        return b"".join(self._opening(index) for index in range(self._context.num_choices))

    def feed(self, index: int, item: StreamItem) -> bytes:
        match item:
            case TextDelta():
                return self._delta(index, item)
            case Finished():
                self._usages[index] = item.usage
                return self._chunk([CompletionChoice(index, "", finish_reason=finish_reason(item))])
            case _:
                return b""

    def end(self) -> bytes:
        if not self._context.includes_usage:
            return sse.DONE
        usage = usage_body(self._usages, self._context.choices_per_prompt)
        return self._chunk([], usage) + sse.DONE

    def fail(self, error: DomainError) -> bytes:
        return error_event(error)

    def _opening(self, index: int) -> bytes:
        choice = CompletionChoice(index, self._context.echo(index))
        if self._context.returns_token_ids:
            choice.prompt_token_ids = self._context.prompt_ids(index)
        return self._chunk([choice])

    def _delta(self, index: int, item: TextDelta) -> bytes:
        choice = CompletionChoice(index, item.text)
        if self._context.has_logprobs and item.logprobs:
            choice.logprobs = completion_logprobs([item], self._context.tokenizer, self._num_chars[index])
        if self._context.returns_token_ids and item.token_ids:
            choice.token_ids = list(item.token_ids)
        self._num_chars[index] += len(item.text)
        if not item.text and choice.logprobs is None and choice.token_ids is UNSET:
            return b""
        return self._chunk([choice])

    def _chunk(self, choices: list[CompletionChoice], usage: UsageBody | None = None) -> bytes:
        context = self._context
        chunk = Completion(context.id, context.created, context.model, choices)
        if context.includes_usage:
            chunk.usage = usage
        return sse.event(self._encoder.encode(chunk))


__all__ = ("Completion", "CompletionFraming", "completion")
