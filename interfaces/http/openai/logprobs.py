"""Log probabilities in the two shapes OpenAI has for them."""

from collections.abc import Sequence

from msgspec import Struct

from application.ports.tokenizer import Tokenizer
from domain.stream import ContentDelta, TokenLogprob
from interfaces.http.openai.chunk_framing import plain_text

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


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
    """Parallel lists, one entry a token. `text_offset` counts characters from the start of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


def chat_logprobs(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer) -> ChatLogprobs:
    return ChatLogprobs([_chat_token(entry, tokenizer) for entry in logprobs])


def completion_logprobs(deltas: Sequence[ContentDelta], tokenizer: Tokenizer, start: int) -> CompletionLogprobs:
    """`start`: characters of the choice's text before the first delta."""
    body = CompletionLogprobs([], [], [], [])
    for delta in deltas:
        offset = start
        for entry in delta.logprobs:
            token = tokenizer.decode((entry.token_id,))
            top = {tokenizer.decode((token_id,)): max(value, LOWEST) for token_id, value in entry.top}
            body.tokens.append(token)
            body.token_logprobs.append(max(entry.logprob, LOWEST))
            body.top_logprobs.append({**top, token: max(entry.logprob, LOWEST)})
            body.text_offset.append(offset)
            offset += len(token)
        start += len(plain_text(delta))
    return body


def _chat_token(entry: TokenLogprob, tokenizer: Tokenizer) -> TokenLogprobBody:
    top = [_top(token_id, value, tokenizer) for token_id, value in entry.top]
    chosen = _top(entry.token_id, entry.logprob, tokenizer)
    return TokenLogprobBody(chosen.token, chosen.logprob, chosen.bytes, top)


def _top(token_id: int, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    text = tokenizer.decode((token_id,))
    return TopLogprob(text, max(logprob, LOWEST), None if "�" in text else list(text.encode()))


__all__ = ("ChatLogprobs", "CompletionLogprobs", "chat_logprobs", "completion_logprobs")
