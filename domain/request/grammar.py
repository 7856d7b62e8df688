"""A grammar that constrains every token of an answer, and the terms of Lark's syntax that such grammars are written in.

A grammar is a value that a request carries to the token side. Its text is bounded and was checked here; the text side
finds out whether it can be enforced, and at what cost, before it submits the request (`GrammarChecker`).

    kind          text
    JSON_SCHEMA   the schema, as `checked_schema` returns it
    JSON_OBJECT   none: any JSON object
    REGEX         a regular expression (Rust's syntax) that matches the whole answer
    CHOICE        a JSON list of strings, one of which is the answer
    LARK          a grammar in Lark's syntax with a rule `start`, as llguidance reads it

A model's family may write something around the answer itself: reasoning before it, tool calls in its place.

The lexer of llguidance takes the longest terminal. Where free text may hold the beginning of the mark that ends it,
both are therefore one terminal (`until`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from domain.errors import InvalidRequest
from domain.request.chat import Json
from domain.request.json_schema import checked_schema

MAX_GRAMMAR_BYTES = 256 * 1024
"""The longest text of one grammar: the schemas of all tools of an agent are some 60 KB."""

MAX_CHOICES = 1_000


class GrammarKind(Enum):
    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Marker:
    """Text that a model's family uses as a mark, such as `</think>`. `token_id`: its special token; None where it is
    spelled with ordinary tokens."""

    text: str
    token_id: int | None = None


Pieces: TypeAlias = tuple[Marker, ...]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Free text before the answer: from `open` up to and with `close`, or none. With `open` empty, the prompt has
    opened it, and the answer begins inside. `before_answer`: the marks before an answer that is no call."""

    close: Pieces
    open: Pieces = ()
    before_answer: Pieces = ()

    @property
    def is_needless(self) -> bool:
        """True if the answer may begin without it: it is not open, and no other mark stands before the answer."""
        return bool(self.open) and not self.before_answer


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar as the module describes. `calls`: a Lark grammar of calls that may replace the answer; "" for none."""

    kind: GrammarKind
    text: str = ""
    reasoning: Reasoning | None = None
    calls: str = ""


def json_schema_grammar(schema: Mapping[str, Json] | bool, param: str) -> Grammar:
    """Returns a grammar of compact JSON (at most one space after a comma or colon) that the schema accepts.

    Raises InvalidRequest for `param`, naming the keyword that cannot be enforced and where it stands."""
    text = json.dumps(checked_schema(schema, param), ensure_ascii=False, separators=(",", ":"))
    return Grammar(GrammarKind.JSON_SCHEMA, bounded(text, param))


def json_object_grammar() -> Grammar:
    """Returns a grammar of any JSON object, as compact as with a schema."""
    return Grammar(GrammarKind.JSON_OBJECT)


def regex_grammar(pattern: str, param: str) -> Grammar:
    """Raises InvalidRequest for `param`."""
    return Grammar(GrammarKind.REGEX, bounded(pattern, param))


def choice_grammar(choices: Sequence[str], param: str) -> Grammar:
    """Raises InvalidRequest for `param`."""
    _check_choices(choices, param)
    text = json.dumps(list(dict.fromkeys(choices)), ensure_ascii=False)
    return Grammar(GrammarKind.CHOICE, bounded(text, param))


def lark_grammar(text: str, param: str) -> Grammar:
    """Raises InvalidRequest for `param`."""
    if "start" not in text:
        raise InvalidRequest(f"{param} must be a Lark grammar with a rule named start", param=param)
    return Grammar(GrammarKind.LARK, bounded(text, param))


def avoiding_grammar(texts: Sequence[str], param: str) -> Grammar:
    """Returns a grammar of any text that contains none of these. Raises InvalidRequest for `param`."""
    _check_choices(texts, param)
    avoided = "|".join(map(literal, texts))
    rules = f"start: TEXT\nTEXT: {ANY_TEXT} & ~/(?s:.*)({avoided})(?s:.*)/\n"
    return Grammar(GrammarKind.LARK, bounded(rules, param))


def _check_choices(texts: Sequence[str], param: str) -> None:
    if not texts or not all(texts):
        raise InvalidRequest(f"{param} must be a list of at least one string, none of them empty", param=param)
    if len(texts) > MAX_CHOICES:
        raise InvalidRequest(f"{param} has more than {MAX_CHOICES} strings", param=param)


def pieces(text: str, special_tokens: Mapping[str, int]) -> Pieces:
    """Returns a family's text as pieces: its special tokens, and the text between them."""
    names = sorted((name for name in special_tokens if name and name in text), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return tuple(Marker(part, special_tokens.get(part)) for part in parts if part)


def bounded(text: str, param: str) -> str:
    """Returns the text. Raises InvalidRequest for `param` if it is empty or too long."""
    if not 0 < len(text.encode()) <= MAX_GRAMMAR_BYTES:
        raise InvalidRequest(f"{param} must have 1 to {MAX_GRAMMAR_BYTES} bytes", param=param)
    return text


JSON_OPTIONS: Mapping[str, Json] = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""At most one space where JSON may have white space, so that a model cannot repeat it without end."""

ANY_TEXT = "/(?s:.*)/"


def json_rule(schema: Mapping[str, Json]) -> str:
    """Returns a schema as a Lark term."""
    return "%json " + _json({**schema, "x-guidance": dict(JSON_OPTIONS)})


def quoted(text: str) -> str:
    """Returns a text as a Lark term."""
    return _json(text)


def terms(pieces: Pieces) -> str:
    """Returns pieces as Lark terms."""
    return " ".join(quoted(one.text) if one.token_id is None else f"<[{one.token_id}]>" for one in pieces)


def without(term: str, text: str) -> str:
    """Returns a terminal for the texts that match a terminal and do not contain the text."""
    return f"({term} & ~/(?s:.*){literal(text)}(?s:.*)/)"


def until(term: str, stop: str, close: Pieces) -> tuple[str, str]:
    """Returns a terminal of free text with the first text of its closing mark, and the terms for the rest of that mark.

    `term`: a terminal that the text matches. `stop`: a text that it may not contain, needed where no special token
    closes it."""
    special = next((at for at, piece in enumerate(close) if piece.token_id is not None), len(close))
    if special == len(close):
        term = without(term, stop)
    head = "".join(piece.text for piece in close[:special])
    return f"{term} {quoted(head)}" if head else term, terms(close[special:])


def literal(text: str) -> str:
    """Returns a text as part of a regular expression between slashes."""
    return "".join(_escaped(char) for char in text)


def between_slashes(pattern: str) -> str:
    """Returns a regular expression with its slashes and line ends escaped, as it stands between slashes."""
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
