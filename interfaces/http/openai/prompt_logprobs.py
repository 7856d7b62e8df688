"""Log probabilities of the prompt, in the two shapes that clients ask for: vLLM's list, and text completions' echo.

A prompt's scores come a chunk at a time, in order, and are written down as they come.
"""

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from application.ports.tokenizer import Tokenizer
from domain.request.stream import TokenLogprob
from interfaces.http.openai.logprobs import LOWEST, CompletionLogprobs, token_texts

Scores: TypeAlias = Sequence[TokenLogprob | None]


class PromptLogprob(Struct):
    """`rank`: 1 for the likeliest of all tokens."""

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
