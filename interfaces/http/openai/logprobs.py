"""Log probabilities in the two shapes OpenAI has for them."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

from msgspec import Struct

from application.ports.tokenizer import Tokenizer
from domain.request.stream import ContentDelta, TokenLogprob
from interfaces.http.openai.chunk_framing import plain_text

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""

TextOf: TypeAlias = Callable[[int], str]


def token_texts(tokenizer: Tokenizer) -> TextOf:
    """The text of a token by itself, each decoded once."""

    @cache
    def text_of(token_id: int) -> str:
        return tokenizer.decode((token_id,))

    return text_of


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobBody(Struct):
    """`bytes` is null for a token that is no whole number of characters."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[TokenLogprobBody]
    refusal: None = None


class CompletionLogprobs(Struct):
    """Parallel lists, one entry a token. `text_offset` counts characters from the start of the choice's text. Null for
    the first token of an echoed prompt, which nothing foretells."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def add(self, text_of: TextOf, token_id: int, entry: TokenLogprob | None, num_tops: int, offset: int) -> int:
        """Returns where the token's text ends."""
        token = text_of(token_id)
        self.tokens.append(token)
        self.token_logprobs.append(None if entry is None else max(entry.logprob, LOWEST))
        self.top_logprobs.append(None if entry is None else _top_texts(text_of, entry, num_tops))
        self.text_offset.append(offset)
        return offset + len(token)

    def followed_by(self, other: "CompletionLogprobs") -> "CompletionLogprobs":
        return CompletionLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


def chat_logprobs(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer) -> ChatLogprobs:
    return ChatLogprobs([_chat_token(entry, tokenizer) for entry in logprobs])


def completion_logprobs(deltas: Sequence[ContentDelta], tokenizer: Tokenizer, start: int) -> CompletionLogprobs:
    """`start`: characters of the choice's text before the first delta."""
    body, text_of = CompletionLogprobs([], [], [], []), token_texts(tokenizer)
    for delta in deltas:
        offset = start
        for entry in delta.logprobs:
            offset = body.add(text_of, entry.token_id, entry, len(entry.top), offset)
        start += len(plain_text(delta))
    return body


def _top_texts(text_of: TextOf, entry: TokenLogprob, num_tops: int) -> dict[str, float]:
    """Of tokens with equal texts (pieces of characters) the likeliest: clients compare the token with the largest."""
    texts: dict[str, float] = {}
    for token_id, value in (*entry.top[:num_tops], (entry.token_id, entry.logprob)):
        text = text_of(token_id)
        texts[text] = max(value, LOWEST, texts.get(text, LOWEST))
    return texts


def _chat_token(entry: TokenLogprob, tokenizer: Tokenizer) -> TokenLogprobBody:
    top = [_top(token_id, value, tokenizer) for token_id, value in entry.top]
    chosen = _top(entry.token_id, entry.logprob, tokenizer)
    return TokenLogprobBody(chosen.token, chosen.logprob, chosen.bytes, top)


def _top(token_id: int, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    text = tokenizer.decode((token_id,))
    return TopLogprob(text, max(logprob, LOWEST), None if "�" in text else list(text.encode()))
