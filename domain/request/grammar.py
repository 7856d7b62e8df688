"""What an answer must look like: a grammar that every token of it is held to.

A value that a request carries to the token side. The text is bounded and has been looked at here; whether it can be
enforced, and at what cost, the text side finds out before it submits (`GrammarChecker`).

    kind          text
    JSON_SCHEMA   the schema, as `checked_schema` leaves it
    JSON_OBJECT   none: any JSON object
    REGEX         a regular expression (Rust's syntax) that matches the whole answer
    CHOICE        a JSON list of strings, one of which is the answer
    LARK          a grammar in Lark's syntax with a rule `start`, as llguidance reads it

Around the answer itself may stand what its model's family writes there: reasoning before it, tool calls in its place.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from domain.errors import InvalidRequest
from domain.request.chat import Json
from domain.request.json_schema import checked_schema

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


Pieces: TypeAlias = tuple[Marker, ...]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Free text before the answer: from `open` up to and with `close`, or none. With `open` empty, the prompt has
    opened it, and the answer begins inside. `before_answer`: what stands before an answer that is no call."""

    close: Pieces
    open: Pieces = ()
    before_answer: Pieces = ()

    @property
    def is_needless(self) -> bool:
        """Whether the answer may begin without: nothing is open, and nothing but reasoning would stand before it."""
        return bool(self.open) and not self.before_answer


@dataclass(frozen=True, slots=True)
class Grammar:
    """See the module. `calls`: a grammar in Lark of calls that may stand in the answer's place; "" for none."""

    kind: GrammarKind
    text: str = ""
    reasoning: Reasoning | None = None
    calls: str = ""


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


def after_reasoning(grammar: Grammar, reasoning: Reasoning) -> Grammar:
    """The same answer after what its model thinks."""
    return replace(grammar, reasoning=reasoning)


def or_calls(grammar: Grammar, calls: Grammar) -> Grammar:
    """The same answer, or calls in its place. `calls` is one in Lark."""
    return replace(grammar, calls=calls.text)


def pieces(text: str, special_tokens: Mapping[str, int]) -> Pieces:
    """A family's text, with those of its tokens that no text spells as such."""
    names = sorted((name for name in special_tokens if name and name in text), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return tuple(Marker(part, special_tokens.get(part)) for part in parts if part)


def bounded(text: str, param: str) -> str:
    """The text, if it is not empty, not too long, and can be written as UTF-8. Raises InvalidRequest for `param`."""
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{param} holds half of a surrogate pair", param=param) from error
    if not 0 < num_bytes <= MAX_GRAMMAR_BYTES:
        raise InvalidRequest(f"{param} must have 1 to {MAX_GRAMMAR_BYTES} bytes", param=param)
    return text
