"""Where a text may be cut so that its parts, encoded one by one, give the tokens of the whole.

A tokenizer looks for added tokens first and encodes the text between them on its own. So a part that begins with one of
them is encoded as it is in the whole. Exceptions begin no part: tokens that take the spaces beside them along, that are
only found between words, or that are looked for in normalized text, which is made after the others were found.

Parts are decided from the beginning of the text on, each by its own text: two texts that begin alike have the same
parts up to where they differ.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from adapters.tokenizers.encoded_parts import Part, PartSpans
from adapters.tokenizers.library import AddedToken, RustTokenizer
from domain.id_row import IdRow

PART_CHARS = 2_048
"""The least length of a part, but for the last: some 500 tokens, half a millisecond of encoding."""

_FILLINGS = (" a b", "word", "\n", "", " naïve 漢字 ", "1 2  ")


class TextCuts:
    """For one tokenizer. Any thread."""

    def __init__(self, pattern: "re.Pattern[str]", cuttable: frozenset[str]) -> None:
        """`pattern` finds added tokens; those that are `cuttable` may begin a part."""
        self._pattern = pattern
        self._cuttable = cuttable

    @classmethod
    def of(cls, rust: RustTokenizer) -> "TextCuts | None":
        """None where no cut is safe, by the tokenizer's description or by trying it."""
        added = [token for token in rust.get_added_tokens_decoder().values() if token.content]
        cuttable = frozenset(token.content for token in added if _may_begin_a_part(token))
        if not cuttable or any(token.single_word for token in added):
            return None
        cuts = cls(re.compile(longest_of(token.content for token in added if not token.normalized)), cuttable)
        return cuts if cuts._are_safe(rust) else None

    def parts(self, text: str, part_chars: int = PART_CHARS) -> Iterator[str]:
        start = 0
        for match in self._pattern.finditer(text):
            at = match.start()
            if match[0] in self._cuttable and at - start >= max(1, part_chars):
                yield text[start:at]
                start = at
        yield text[start:]

    def _are_safe(self, rust: RustTokenizer) -> bool:
        """Whether a text with some of the tokens between words, spaces and each other gives the same cut and whole."""
        text = "".join(filling + token for token in sorted(self._cuttable)[:8] for filling in _FILLINGS)
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
