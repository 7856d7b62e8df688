"""The log probabilities of an answer's tokens, in the shape that several dialects have for them."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

from msgspec import Struct

from application.ports.tokenizer import Tokenizer
from domain.request.stream import TokenLogprob

LOWEST = -9999.0
"""The value that stands for minus infinity, which JSON lacks."""

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
    """The log probability of a token. `bytes` is null for a token that is no whole number of characters."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


def token_logprobs(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer) -> list[TokenLogprobBody]:
    return [_token(entry, tokenizer) for entry in logprobs]


def _token(entry: TokenLogprob, tokenizer: Tokenizer) -> TokenLogprobBody:
    top = [_top(token_id, value, tokenizer) for token_id, value in entry.top]
    chosen = _top(entry.token_id, entry.logprob, tokenizer)
    return TokenLogprobBody(chosen.token, chosen.logprob, chosen.bytes, top)


def _top(token_id: int, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    text = tokenizer.decode((token_id,))
    return TopLogprob(text, max(logprob, LOWEST), None if "�" in text else list(text.encode()))
