"""Terms of a grammar in Lark's syntax, as llguidance reads it: text, special tokens, JSON, regular expressions.

The longest terminal is read, whatever else could be meant: where free text may hold the beginning of what ends it, both
are one terminal (`until`).
"""

import json
import re
from collections.abc import Mapping

from domain.request.chat import Json
from domain.request.grammar import Pieces

JSON_OPTIONS: Mapping[str, Json] = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""At most one space where JSON may have white space: a model cannot lose itself in it. Regular expressions."""

ANY_TEXT = "/(?s:.*)/"


def json_rule(schema: Mapping[str, Json]) -> str:
    """A schema as a term of Lark."""
    return "%json " + _json({**schema, "x-guidance": dict(JSON_OPTIONS)})


def quoted(text: str) -> str:
    """A text as a term of Lark."""
    return _json(text)


def terms(pieces: Pieces) -> str:
    """Pieces as terms of Lark."""
    return " ".join(quoted(one.text) if one.token_id is None else f"<[{one.token_id}]>" for one in pieces)


def without(term: str, text: str) -> str:
    """What matches the term, a terminal's, and does not hold the text."""
    return f"({term} & ~/(?s:.*){literal(text)}(?s:.*)/)"


def until(term: str, stop: str, close: Pieces) -> tuple[str, str]:
    """A terminal of free text with the beginning of what closes it, and the terms for the rest of that.

    `term`: what of a terminal the text matches. `stop`: what the text may not hold, if no special token closes it, as
    no text spells those."""
    special = next((at for at, piece in enumerate(close) if piece.token_id is not None), len(close))
    if special == len(close):
        term = without(term, stop)
    head = "".join(piece.text for piece in close[:special])
    return f"{term} {quoted(head)}" if head else term, terms(close[special:])


def literal(text: str) -> str:
    """A text in a regular expression between slashes."""
    return "".join(_escaped(char) for char in text)


def between_slashes(pattern: str) -> str:
    """A regular expression, with slashes and line ends as they stand between slashes."""
    return _ODD_PART.sub(lambda found: _ODD_PARTS.get(found[0], found[0]), pattern)


_ODD_PART = re.compile(r"\\.|[/\n]", re.DOTALL)
_ODD_PARTS = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}


def _escaped(char: str) -> str:
    if char.isalnum() or char in "_ \"'<>=:;,!@%&~`":
        return char
    return f"\\{char}" if char.isascii() and char.isprintable() else f"\\x{{{ord(char):x}}}"


def _json(value: Json) -> str:
    """DEL is the one control character that JSON may leave as it is, and Lark may not."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
