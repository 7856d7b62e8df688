"""Drafts by lookup: the tokens that followed an earlier occurrence of the present end of a sequence.

    text        ... the cat sat on the mat . ... the cat sat      the end "the cat sat" occurred before,
    proposal                    on the mat                        so what followed it there is proposed

The texts are searched without an index: ids are kept as the characters of a `str`, four bytes each, so `str.rfind`
compares whole ids at the speed of C. Measured on one core, for 1,000, 20,000 and 200,000 tokens: a step takes 5, 12
and 100 us where nothing matches and 5 us where a match is followed; the prompt is converted once, in 0.2, 0.3 and 2 to
4 ms. (An index of Python integers takes 0.4, 7 and 110 ms to build, one search of packed bytes 2, 15 and 400 us.)

A match is followed from step to step while its tokens are right. When one is wrong, the longest match is searched, the
most recent of equal ones. Each token that a match expects is compared with the one that comes, whether it was drafted
or not, so the share of right ones, by length of the match, is known without a probe.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from domain.id_row import IdRow
from domain.speculation.acceptance import Acceptance
from domain.speculation.drafter import Drafter

SHORTEST, LONGEST = 3, 8
"""Tokens that must be equal, and those that are compared: of two matches the longer counts, up to LONGEST."""

PRIORS = (0.4, 0.4, 0.65, 0.85, 0.93)
"""The first estimates of acceptance, for matches of up to 3, 7, 15, 31 tokens and of more. A followed match grows.
Measured on edits in this repository's history."""

MOST_TRIES = 8
"""Searches a text: each finds a longer match than the last, or passes over a place that was wrong."""

MOST_COMPARED = 1_000_000
"""Tokens that the searches of a text compare at most, 3 to 10 ms. In a text of two different tokens `rfind` compares
much of the end at each place: a prompt written for that would hold up every stream for 0.2 s a step."""

MOST_WRONG = 1024
LARGEST_ID = 0x10FFFF

PREDICTION, OUTPUT, PROMPT = range(3)
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
    (PREDICTION), which is expected from the answer's beginning. Not thread-safe.

    `output_ids`: the output so far of a sequence that continues. `prediction`: the client's text; empty for none."""

    def __init__(self, prompt: IdRow, output_ids: Sequence[int] = (), prediction: Sequence[int] = ()) -> None:
        before = _characters(prompt)  # as long as it may be, it is never copied
        self._texts = [_characters(prediction), before[-LONGEST:] + _characters(output_ids), before]
        self._acceptance = [Acceptance(prior) for prior in PRIORS]
        is_beginning = len(prediction) > 0 and not output_ids
        self._match = _Match(PREDICTION, 0, LONGEST) if is_beginning else None
        self._wrong: dict[tuple[int, int], int] = {}
        """The places whose token was wrong, each with the length of the match: only a longer one is tried again."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """Appends the tokens that a step has put out, and compares them with the expected ones."""
        added = _characters(token_ids)
        self._texts[OUTPUT] += added
        for token in added:
            self._compare(token)

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
        return Proposal(tuple(map(ord, following)), drafter, self._estimate(length).probability)

    def _compare(self, token: str) -> None:
        if self._match is None:
            return
        text, place, length = self._match
        is_right = self._texts[text][place] == token
        self._estimate(length).observe(1, int(is_right))
        has_next = place + 1 < len(self._texts[text])
        self._match = _Match(text, place + 1, length + 1) if is_right and has_next else None
        if not is_right:
            if len(self._wrong) >= MOST_WRONG:
                self._wrong.clear()
            self._wrong[text, place] = length

    def _estimate(self, length: int) -> Acceptance:
        return self._acceptance[min(length.bit_length() - 2, len(PRIORS) - 1)]

    def _longest(self, text: int) -> _Match | None:
        """Returns the longest match in a text, the most recent of equal ones."""
        searched, end = self._texts[text], self._texts[OUTPUT][-LONGEST:]
        best, length, stop, budget = None, SHORTEST, len(searched) - 1, MOST_COMPARED
        for _ in range(MOST_TRIES):
            first = max(0, stop - budget // length)
            found = searched.rfind(end[-length:], first, stop) if len(end) >= length else -1
            if found < 0:
                break
            budget -= (stop - found) * length
            place = found + length
            matched = _common(searched[max(0, place - LONGEST) : place], end)
            if matched > self._wrong.get((text, place), 0):
                best, length = _Match(text, place, matched), matched + 1
            if length > LONGEST:
                break
            stop = place - 1
        return best


def _common(one: str, other: str) -> int:
    """Returns the number of equal characters at the ends of two texts."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _characters(token_ids: Iterable[int]) -> str:
    """Returns the ids as characters. Ids above LARGEST_ID, which no vocabulary has, become that one."""
    row = IdRow(token_ids)
    try:
        return row.to_bytes().decode("utf-32-le", "surrogatepass")
    except UnicodeDecodeError:
        return "".join(chr(min(id, LARGEST_ID)) for id in row)
