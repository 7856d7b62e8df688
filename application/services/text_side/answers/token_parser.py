"""The OutputParsers over a tokenizer's detokenizer."""

from collections.abc import Mapping, Sequence

from application.ports.tokenizer import Detokenizer
from domain.output.text_parser import TextParser
from domain.request.stream import ContentDelta, TextDelta


class PlainParser:
    """A parser that yields text only: for the completion of a raw prompt."""

    __slots__ = ("_detokenizer",)

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer

    def feed(self, token_id: int) -> Sequence[ContentDelta]:
        return (TextDelta(self._detokenizer.feed(token_id)),)

    def finish(self) -> Sequence[ContentDelta]:
        return (TextDelta(self._detokenizer.flush()),)


class TokenParser:
    """A parser of chat answers. `mark_of`: the special tokens that mark reasoning or calls, as the text parser writes
    them; other special tokens yield nothing."""

    __slots__ = ("_detokenizer", "_mark_of", "_parser")

    def __init__(self, detokenizer: Detokenizer, parser: TextParser, mark_of: Mapping[int, str]) -> None:
        self._detokenizer = detokenizer
        self._parser = parser
        self._mark_of = mark_of

    def feed(self, token_id: int) -> Sequence[ContentDelta]:
        mark = self._mark_of.get(token_id)
        text = self._detokenizer.feed(token_id) if mark is None else self._detokenizer.flush() + mark
        return self._parser.feed(text) if text else ()

    def finish(self) -> Sequence[ContentDelta]:
        return (*self._parser.feed(self._detokenizer.flush()), *self._parser.finish())
