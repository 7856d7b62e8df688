"""Log probabilities of an answer in the two shapes that OpenAI has for them, and of a prompt in the two shapes that
clients request: vLLM's list, and the echo of text completions.

The scores of a prompt arrive a chunk at a time, in order, and are encoded as they arrive.
"""

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from application.ports.tokenizer import Tokenizer
from domain.request.stream import ContentDelta, TokenLogprob
from interfaces.http.answering.token_logprobs import LOWEST, TextOf, TokenLogprobBody, token_logprobs, token_texts
from interfaces.http.openai.shared import plain_text


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
    return ChatLogprobs(token_logprobs(logprobs, tokenizer))


def completion_logprobs(deltas: Sequence[ContentDelta], tokenizer: Tokenizer, start: int) -> CompletionLogprobs:
    """The log probabilities of deltas. `start`: characters of the choice's text before the first delta."""
    body, text_of = CompletionLogprobs([], [], [], []), token_texts(tokenizer)
    for delta in deltas:
        offset = start
        for entry in delta.logprobs:
            offset = body.add(text_of, entry.token_id, entry, len(entry.top), offset)
        start += len(plain_text(delta))
    return body


def _top_texts(text_of: TextOf, entry: TokenLogprob, num_tops: int) -> dict[str, float]:
    """The log probabilities by text; of tokens with equal texts (pieces of characters) the likeliest, as clients
    compare the token with the largest."""
    texts: dict[str, float] = {}
    for token_id, value in (*entry.top[:num_tops], (entry.token_id, entry.logprob)):
        text = text_of(token_id)
        texts[text] = max(value, LOWEST, texts.get(text, LOWEST))
    return texts


Scores: TypeAlias = Sequence[TokenLogprob | None]


class PromptLogprob(Struct):
    """The log probability of a prompt token. `rank`: 1 for the likeliest of all tokens."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobsBody: TypeAlias = list[dict[str, PromptLogprob] | None]
"""An entry a prompt token, by token id: the token itself and the likeliest. Null for the first."""


class ScoredPrompt:
    """One prompt of a request."""

    def __init__(self, token_ids: Sequence[int], tokenizer: Tokenizer) -> None:
        self._token_ids = token_ids
        self._text_of = token_texts(tokenizer)
        self._num_echoed = 0
        self._num_chars = 0

    def listed(self, scores: Scores, num_tops: int) -> PromptLogprobsBody:
        return [None if score is None else self._ranked(score, num_tops) for score in scores]

    def echoed(self, scores: Scores, num_tops: int) -> CompletionLogprobs:
        """The next of its tokens, as part of a choice's text."""
        body = CompletionLogprobs([], [], [], [])
        ids = self._token_ids[self._num_echoed : self._num_echoed + len(scores)]
        for token_id, score in zip(ids, scores, strict=True):
            self._num_chars = body.add(self._text_of, token_id, score, num_tops, self._num_chars)
        self._num_echoed += len(scores)
        return body

    def _ranked(self, score: TokenLogprob, num_tops: int) -> dict[str, PromptLogprob]:
        entries = [(token_id, value, 1 + place) for place, (token_id, value) in enumerate(score.top[:num_tops])]
        own = (score.token_id, score.logprob, score.rank)
        return {
            str(token_id): PromptLogprob(max(value, LOWEST), rank, self._text_of(token_id))
            for token_id, value, rank in (own, *entries)
        }
