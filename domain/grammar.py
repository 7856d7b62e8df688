"""What an answer must look like: a grammar that every token of it is held to.

A value that a request carries to the token side. The text is bounded and has been looked at here; whether it can be
enforced, and at what cost, the text side finds out before it submits (`GrammarChecker`).

    kind          text
    JSON_SCHEMA   the schema, as `checked_schema` leaves it
    JSON_OBJECT   none: any JSON object
    REGEX         a regular expression (Rust's syntax) that matches the whole answer
    CHOICE        a JSON list of strings, one of which is the answer
    LARK          a grammar in Lark's syntax with a rule `start`, as llguidance reads it
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from domain.chat import Json
from domain.errors import InvalidRequest
from domain.json_schema import checked_schema

MAX_GRAMMAR_BYTES = 256 * 1024
"""Of one grammar's text: the schemas of all tools of an agent are some 60 KB."""

MAX_CHOICES = 1_000


class GrammarKind(Enum):
    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Marker:
    """Text that a model's family uses as a sign, such as `</think>`. `token_id`: of the special token that it is, None
    where it is spelled with ordinary tokens."""

    text: str
    token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Grammar:
    """See the module. `reasoning_end`: free text comes first, up to and with this marker; None where none does."""

    kind: GrammarKind
    text: str = ""
    reasoning_end: Marker | None = None


def json_schema_grammar(schema: Mapping[str, Json] | bool, param: str) -> Grammar:
    """Compact JSON, at most one space after a comma or colon, that the schema accepts.

    Raises InvalidRequest for `param`, naming the keyword that cannot be enforced and where it stands."""
    text = json.dumps(checked_schema(schema, param), ensure_ascii=False, separators=(",", ":"))
    return Grammar(GrammarKind.JSON_SCHEMA, bounded(text, param))


def json_object_grammar() -> Grammar:
    """Any JSON object, as compact as with a schema."""
    return Grammar(GrammarKind.JSON_OBJECT)


def regex_grammar(pattern: str, param: str) -> Grammar:
    """Raises InvalidRequest for `param`."""
    return Grammar(GrammarKind.REGEX, bounded(pattern, param))


def choice_grammar(choices: Sequence[str], param: str) -> Grammar:
    """Raises InvalidRequest for `param`."""
    if not choices or not all(choices):
        raise InvalidRequest(f"{param} must hold at least one string, and none that is empty", param=param)
    if len(choices) > MAX_CHOICES:
        raise InvalidRequest(f"{param} has more than {MAX_CHOICES} strings", param=param)
    text = json.dumps(list(dict.fromkeys(choices)), ensure_ascii=False)
    return Grammar(GrammarKind.CHOICE, bounded(text, param))


def lark_grammar(text: str, param: str) -> Grammar:
    """Raises InvalidRequest for `param`."""
    if "start" not in text:
        raise InvalidRequest(f"{param} must be a Lark grammar with a rule named start", param=param)
    return Grammar(GrammarKind.LARK, bounded(text, param))


def after_reasoning(grammar: Grammar, end: Marker) -> Grammar:
    """The same answer after free text that ends with this marker. For a model whose prompt has begun its reasoning."""
    return replace(grammar, reasoning_end=end)


def bounded(text: str, param: str) -> str:
    """The text, if it is not empty, not too long, and can be written as UTF-8. Raises InvalidRequest for `param`."""
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{param} holds half of a surrogate pair", param=param) from error
    if not 0 < num_bytes <= MAX_GRAMMAR_BYTES:
        raise InvalidRequest(f"{param} must have 1 to {MAX_GRAMMAR_BYTES} bytes", param=param)
    return text


__all__ = (
    "MAX_GRAMMAR_BYTES",
    "Grammar",
    "GrammarKind",
    "Marker",
    "after_reasoning",
    "bounded",
    "choice_grammar",
    "json_object_grammar",
    "json_schema_grammar",
    "lark_grammar",
    "regex_grammar",
)
