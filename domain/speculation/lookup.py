"""Drafts by lookup: the tokens that followed an earlier occurrence of the present end of a sequence.

    text        ... the cat sat on the mat . ... the cat sat      the end "the cat sat" occurred before,
    proposal                    on the mat                        so what followed it there is proposed

The texts are searched without an index: ids are kept as the characters of a `str`, four bytes each, so `str.rfind`
compares whole ids at the speed of C: one search of 1,000,000 tokens takes up to 4 ms, in the worst text. (An index of
Python integers takes 110 ms to build for 200,000 tokens.)

A match is followed from step to step while its tokens are right. When one is wrong, the longest match is searched, the
most recent of equal ones. Each token that a match expects is compared with the one that comes, whether it was drafted
or not, so the share of right ones, by length of the match, is known without a probe.
"""

from collections.abc import Sequence
from typing import NamedTuple

from domain.id_row import IdRow
from domain.speculation.drafter import Drafter
from domain.speculation.gain import observed

LENGTHS = range(3, 9)
"""The tokens at the end that must be equal. Of two matches the longer counts."""

PRIORS = (0.4, 0.4, 0.65, 0.85, 0.93)
"""The first estimates of acceptance, for matches of up to 3, 7, 15, 31 tokens and of more. A followed match grows.
Measured on edits in this repository's history."""

LARGEST_ID = 0x10FFFF
"""The largest id that a character can have."""

OUTPUT, PREDICTION, PROMPT = range(3)
"""The searched texts. Of equally long matches the first counts."""


class Proposal(NamedTuple):
    """A draft from a text. `probability`: the estimate that each of its tokens is right, given those before it."""

    token_ids: tuple[int, ...]
    drafter: Drafter
    probability: float


class _Match(NamedTuple):
    """A followed match: the next token is expected at `place` of a text; `length` tokens before it are equal."""

    text: int
    place: int
    length: int


class NgramLookup:
    """The lookup of one sequence, in its prompt and output (NGRAM), and in the text that the client predicts
    (PREDICTION). Not thread-safe.

    `output_ids`: the output so far of a sequence that continues. `prediction`: the client's text; empty for none. No id
    may be above LARGEST_ID."""

    def __init__(self, prompt: IdRow, output_ids: Sequence[int] = (), prediction: Sequence[int] = ()) -> None:
        before = _characters(prompt)  # as long as it may be, it is never copied
        self._texts = [before[-LENGTHS[-1] :] + _characters(output_ids), _characters(prediction), before]
        self._estimates = list(PRIORS)
        self._match: _Match | None = None

    def extend(self, token_ids: Sequence[int]) -> None:
        """Appends the tokens that a step has put out, and compares them with the expected ones."""
        added = "".join(map(chr, token_ids))  # a few: faster than `_characters`
        self._texts[OUTPUT] += added
        for token in added:
            if self._match is None:
                break
            text, place, length = self._match
            is_right = self._texts[text][place] == token
            index = _index_of(length)
            self._estimates[index] = observed(self._estimates[index], 1, int(is_right))
            has_next = is_right and place + 1 < len(self._texts[text])
            self._match = _Match(text, place + 1, length + 1) if has_next else None

    def propose(self, most: int) -> Proposal | None:
        """Returns at most `most` tokens, which continue the sequence; None without a match."""
        if self._match is None:
            matches = [match for text in range(len(self._texts)) if (match := self._longest(text))]
            self._match = max(matches, key=lambda match: match.length, default=None)
        if self._match is None or most <= 0:
            return None
        text, place, length = self._match
        following = self._texts[text][place : place + most]
        if text == OUTPUT and len(following) < most:  # the output repeats itself: so does what follows
            following = (following * most)[:most]
        drafter = Drafter.PREDICTION if text == PREDICTION else Drafter.NGRAM
        return Proposal(tuple(map(ord, following)), drafter, self._estimates[_index_of(length)])

    def _longest(self, text: int) -> _Match | None:
        """Returns the longest match in a text, the most recent of equal ones."""
        searched, end, best = self._texts[text], self._texts[OUTPUT], None
        for length in LENGTHS:
            found = searched.rfind(end[-length:], 0, len(searched) - 1)
            if found < 0 or len(end) < length:
                break
            best = _Match(text, found + length, length)
        return best


def _index_of(length: int) -> int:
    """Returns the index among PRIORS of a match of `length` tokens."""
    return min(length.bit_length() - 2, len(PRIORS) - 1)


def _characters(token_ids: Sequence[int]) -> str:
    """Returns the ids as characters."""
    return IdRow(token_ids).to_bytes().decode("utf-32-le", "surrogatepass")
