"""The answer to a chat completion: one body, or a stream of chunks."""

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
from interfaces.http.openai.logprobs import ChatLogprobs, chat_logprobs
from interfaces.http.openai.usage import UsageBody, usage_body


class AnswerMessage(Struct, tag_field="role", tag="assistant"):
    content: str
    refusal: None = None


class ChatChoice(Struct):
    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, tag_field="object", tag="chat.completion"):
    """`prompt_token_ids` and `token_ids` are there when `return_token_ids` asked for them."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_token_ids: list[int] | UnsetType = UNSET


class Delta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, tag_field="object", tag="chat.completion.chunk"):
    """`usage` is null in every chunk but the last when it was asked for, else absent."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


def chat_completion(context: AnswerContext, collected: Sequence[Collected]) -> ChatCompletion:
    choices = [_choice(context, index, choice) for index, choice in enumerate(collected)]
    usages = [choice.finished.usage if choice.finished else None for choice in collected]
    prompt_ids = context.prompt_ids(0) if context.returns_token_ids else UNSET
    usage = usage_body(usages, context.choices_per_prompt)
    return ChatCompletion(context.id, context.created, context.model, choices, usage, prompt_token_ids=prompt_ids)


def _choice(context: AnswerContext, index: int, choice: Collected) -> ChatChoice:
    logprobs = [entry for delta in choice.deltas for entry in delta.logprobs]
    return ChatChoice(
        index,
        AnswerMessage(choice.text),
        finish_reason(choice.finished),
        chat_logprobs(logprobs, context.tokenizer) if context.has_logprobs else None,
        choice.token_ids if context.returns_token_ids else UNSET,
    )


class ChatFraming:
    """A Framing: a role chunk for each choice, content, a finish chunk for each, usage if asked for, `[DONE]`."""

    def __init__(self, context: AnswerContext) -> None:
        self._context = context
        self._encoder = msgspec.json.Encoder()
        self._usages: list[Usage | None] = [None] * context.num_choices

    def begin(self) -> bytes:
        prompt_ids = self._context.prompt_ids(0) if self._context.returns_token_ids else UNSET
        roles = [ChunkChoice(index, Delta("assistant", "")) for index in range(self._context.num_choices)]
        return b"".join(self._chunk([role], prompt_ids=prompt_ids) for role in roles)

    def feed(self, index: int, item: StreamItem) -> bytes:
        match item:
            case TextDelta():
                return self._delta(index, item)
            case Finished():
                self._usages[index] = item.usage
                return self._chunk([ChunkChoice(index, Delta(), finish_reason=finish_reason(item))])
            case _:
                return b""

    def end(self) -> bytes:
        if not self._context.includes_usage:
            return sse.DONE
        usage = usage_body(self._usages, self._context.choices_per_prompt)
        return self._chunk([], usage) + sse.DONE

    def fail(self, error: DomainError) -> bytes:
        return error_event(error)

    def _delta(self, index: int, item: TextDelta) -> bytes:
        choice = ChunkChoice(index, Delta(content=item.text))
        if self._context.has_logprobs and item.logprobs:
            choice.logprobs = chat_logprobs(item.logprobs, self._context.tokenizer)
        if self._context.returns_token_ids and item.token_ids:
            choice.token_ids = list(item.token_ids)
        if not item.text and choice.logprobs is None and choice.token_ids is UNSET:
            return b""
        return self._chunk([choice])

    def _chunk(
        self,
        choices: list[ChunkChoice],
        usage: UsageBody | None = None,
        prompt_ids: list[int] | UnsetType = UNSET,
    ) -> bytes:
        context = self._context
        chunk = ChatChunk(context.id, context.created, context.model, choices, prompt_token_ids=prompt_ids)
        if context.includes_usage:
            chunk.usage = usage
        return sse.event(self._encoder.encode(chunk))


__all__ = ("ChatCompletion", "ChatFraming", "chat_completion")
