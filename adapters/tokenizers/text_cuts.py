"""Where a text may be cut so that its parts, encoded one by one, give the tokens of the whole.

A tokenizer looks for added tokens first and encodes what is between them on its own. So a part that begins with one of
them is encoded as it is in the whole. Not every one: those that take spaces beside them along, or are only found
between words, see over the cut. Nor those that are looked for in normalized text, which is made when the others were
found. Between added tokens many tokenizers may be cut where a word ends as well (`word_ends`).

Parts are decided from the beginning of the text on, each by what is in it: two texts that begin alike have the same
parts up to where they differ. The token behind a text that was cut begins a part however long that would be: so a
message is cut as it was, whatever has changed in one before it.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from string import ascii_letters
from typing import NamedTuple

from adapters.tokenizers.encoded_parts import Part, PartSpans
from adapters.tokenizers.library import AddedToken, RustTokenizer
from adapters.tokenizers.word_ends import WORD_END, ends_words
from domain.id_row import IdRow

PART_CHARS = 2_048
"""A part is cut off where it may be once it has so many characters: some 500 tokens, half a millisecond of encoding."""

_FILLINGS = (" a b", "word", "\n", "", " naïve 漢字 ", "1 2  ")

_HARD_TEXT = "".join(f"1{letter}," for letter in ascii_letters) + (
    "I'd say. We'LL, won't: it's x'ſ.\n\n  def code(x, y):\n\treturn \"a\", 3.14159  \r\n   \n e\u0301 a \u0301b "
    "o\u0308,x 漢字，かな。\nカナ、가나 다라 😀 a\ufe0f\u200d b  c   d \n\nfoo.bar/baz.\n\n//a. Ünï éà Слово это "
    '{"key":"value","n":[1,2345678]} '
)
"""Each letter alone, what follows apostrophes, code, white space, marks that combine."""


class _Stretch(NamedTuple):
    """Text from `start` to `end`, and whether the added token behind it may begin a part."""

    start: int
    end: int
    may_end_part: bool


class TextCuts:
    """For one tokenizer. Any thread."""

    def __init__(
        self,
        pattern: "re.Pattern[str] | None",
        cuttable: frozenset[str],
        word_end: "re.Pattern[str] | None" = None,
    ) -> None:
        """`pattern`: of added tokens, if there are any; `word_end`: of what may begin a part between them."""
        self._pattern = pattern
        self._cuttable = cuttable
        self._word_end = word_end

    @classmethod
    def of(cls, rust: RustTokenizer) -> "TextCuts | None":
        """None where no cut is safe, by what the tokenizer says of itself or by trying it."""
        added = [token for token in rust.get_added_tokens_decoder().values() if token.content]
        if any(token.single_word for token in added):
            return None
        found = {token.content for token in added if not token.normalized}
        pattern = re.compile(longest_of(found)) if found else None
        cuttable = frozenset(token.content for token in added if _may_begin_a_part(token))
        if ends_words(rust) and (cuts := cls(pattern, cuttable, WORD_END))._are_safe(rust):
            return cuts
        cuts = cls(pattern, cuttable)
        return cuts if cuttable and cuts._are_safe(rust) else None

    def parts(self, text: str, part_chars: int = PART_CHARS) -> Iterator[str]:
        part_chars = max(1, part_chars)
        start, may_be_short = 0, False
        for stretch in self._stretches(text):
            while (cut := self._word_end_in(stretch, text, start + part_chars)) is not None:
                yield text[start:cut]
                start, may_be_short = cut, True
            if stretch.may_end_part and (may_be_short or stretch.end - start >= part_chars):
                yield text[start : stretch.end]
                start, may_be_short = stretch.end, False
        yield text[start:]

    def _word_end_in(self, stretch: _Stretch, text: str, least: int) -> int | None:
        """The first one at `least` or behind it, with the letter before it in the stretch."""
        if self._word_end is None or least >= stretch.end:
            return None
        found = self._word_end.search(text, max(stretch.start + 1, least), stretch.end)
        return None if found is None else found.start()

    def _stretches(self, text: str) -> Iterator[_Stretch]:
        start = 0
        for match in self._pattern.finditer(text) if self._pattern is not None else ():
            yield _Stretch(start, match.start(), match[0] in self._cuttable)
            start = match.end()
        yield _Stretch(start, len(text), may_end_part=False)

    def _are_safe(self, rust: RustTokenizer) -> bool:
        """Whether a text with some of the tokens between words, spaces and each other gives the same cut and whole."""
        tokens = sorted(self._cuttable)[:8] or [""]
        text = "".join(filling + token for token in tokens for filling in _FILLINGS) + _HARD_TEXT
        texts = list(self.parts(text, part_chars=1))
        whole, *encodings = rust.encode_batch([text, *texts], add_special_tokens=False)
        parts = [Part(IdRow(one.ids), one, len(part)) for one, part in zip(encodings, texts, strict=True)]
        if IdRow.joined(part.ids for part in parts) != whole.ids:
            return False
        spans = PartSpans(parts)
        return all(spans[index] == whole.token_to_chars(index) for index in range(len(whole)))


def longest_of(texts: Iterable[str]) -> str:
    """A regular expression for the longest of `texts` that is there. It branches where they differ: some families have
    thousands, and one tried after the other they take seconds for a few thousand `<`, with the interpreter held."""
    ordered = sorted(set(texts))
    pairs = enumerate(zip(ordered[0], ordered[-1], strict=False))  # what these two share all do
    num_shared = next((at for at, (one, other) in pairs if one != other), len(ordered[0]))
    start = ordered[0][:num_shared]
    rests = [text[num_shared:] for text in ordered]
    branches = [longest_of(rest) for _, rest in groupby(filter(None, rests), key=lambda rest: rest[0])]
    if not branches:
        return re.escape(start)
    return f"{re.escape(start)}(?:{'|'.join(branches)}){'?' if '' in rests else ''}"


def _may_begin_a_part(token: AddedToken) -> bool:
    return not (token.normalized or token.lstrip or token.rstrip)


__all__ = ("PART_CHARS", "TextCuts", "longest_of")
