"""A call's arguments written parameter by parameter, as Lark rules: in the schema's order, and no others than it lists.

A schema that lists none allows any. A schema that cannot be enforced is refused for a strict tool, and any value of its
type is allowed for another.
"""

import re
from collections.abc import Mapping, Sequence
from typing import cast

from domain.call_grammar.strings import only, refused, string_term
from domain.call_grammar.values import ANY_KEY, LiteralRules, Rules, listed_members, members
from domain.errors import InvalidRequest
from domain.output.family import Values, WrittenParameters
from domain.printable import printable
from domain.request.chat import Json
from domain.request.grammar import ANY_TEXT, Pieces, json_rule, pieces, quoted, terms, until
from domain.request.schema_proofs import KEYWORDS
from domain.request.value_check import STRING, types_in

_KEYS = {Values.RAW: re.compile(r"[^\s<>\"'=\\](?:[^<>\"'=\\\n]*[^\s<>\"'=\\])?")}
_BARE_KEY = re.compile(r"[\w.-]+")
_OBJECT = {"type", "properties", "required", "additionalProperties"}
_WORDS = {"boolean": '"True" | "False"', "null": '"None"'}
_FIRST_CHARS = {"array": r"\[", "object": "{", "integer": r"0-9\-", "number": r"0-9\-"}
"""The first characters of a type's JSON, inside brackets of a regular expression. `null`, `true` and `false` are
themselves in raw text too."""


class ParameterRules:
    """The rules for one tool's arguments; `prefix` begins their names."""

    def __init__(
        self,
        written: WrittenParameters,
        special_tokens: Mapping[str, int],
        *,
        prefix: str,
        param: str,
        is_strict: bool,
    ) -> None:
        self._written = written
        self._special_tokens = special_tokens
        self._prefix = prefix
        self._param = param
        self._is_strict = is_strict
        self._root: Mapping[str, Json] = {}
        self._rules = Rules(prefix, param)

    @property
    def lines(self) -> list[str]:
        return self._rules.lines

    def arguments(self, schema: Mapping[str, Json]) -> str:
        """Returns a term for arguments that fit this schema. Raises InvalidRequest."""
        try:
            return self._object(schema)
        except InvalidRequest:
            if self._is_strict:
                raise
        self._rules = Rules(self._prefix, self._param)
        return self._object({})

    def only_text(self, key: str, regex: str) -> str:
        """Returns a term for one parameter, a string that matches a regular expression."""
        name = quoted(key + self._written.before_value)
        match self._written.values:
            case Values.RAW:
                return self._rules.add(self._raw_string(quoted(key), f"/{regex}/"))
            case Values.JSON:
                return f"{name} {self._rules.add(json_rule({'type': 'string', 'pattern': f'^({regex})$'}))}"
            case Values.LITERAL:
                return f"{name} {self._literals().string(f'/{regex}/')}"

    def _object(self, schema: Mapping[str, Json]) -> str:
        only(schema, _OBJECT, self._param)
        if schema.get("type", "object") != "object":
            raise refused("type", "must be object", self._param)
        self._root = schema
        between = terms(self._pieces(self._written.between))
        listed = listed_members(schema, self._param)
        if listed:
            written = [(self._parameter(key, one), must) for key, one, must in listed]
            return members(written, between, self._rules.add)
        others = schema.get("additionalProperties", not schema.get("properties"))
        if others is False:
            return ""
        other = self._rules.add(self._free(others))
        return f"({other} ({between} {other})*)?"

    def _parameter(self, key: str, schema: Json) -> str:
        pattern = _KEYS.get(self._written.values, _BARE_KEY)
        if not pattern.fullmatch(key):
            raise refused(
                "properties", f"names {printable(key)!r}, which this format cannot write; rename it", self._param
            )
        num_lines = len(self._rules.lines)
        try:
            return self._rules.add(self._with_key(quoted(key), schema))
        except InvalidRequest:
            if self._is_strict:
                raise
        del self._rules.lines[num_lines:]
        types: list[Json] = [*sorted(types_in(schema))]
        return self._rules.add(self._with_key(quoted(key), {"type": types} if types else True))

    def _free(self, schema: Json) -> str:
        """Returns a parameter with any name, for which the parser knows no type."""
        if self._written.values is Values.RAW and not _is_any(schema):
            return self._json_value(ANY_KEY, schema)
        return self._with_key(ANY_KEY, schema)

    def _with_key(self, key: str, schema: Json) -> str:
        """Returns a term for a parameter with this name."""
        if self._written.values is Values.RAW:
            return self._raw_value(key, schema)
        return self._json_value(key, schema)

    def _raw_value(self, key: str, schema: Json) -> str:
        if _is_any(schema):
            text = self._raw_string(key, ANY_TEXT)
            return f"{text} | {self._json_value(key, True)}" if self._written.before_string else text
        types = types_in(schema)
        if types == STRING:
            return self._raw_string(key, string_term(cast("Mapping[str, Json]", schema), self._param))
        as_json = self._json_value(key, schema)
        if "string" not in types or not _is_union(schema):
            return as_json
        first = "".join(dict.fromkeys(_FIRST_CHARS.get(one, "") for one in sorted(types)))
        text = rf"/([^\s\x00-\x1f\"{first}](?s:.*))?/"
        return f"{as_json} | {self._raw_string(key, text)}"

    def _raw_string(self, key: str, term: str) -> str:
        written = self._written
        close = self._pieces(written.after_string or written.close)
        value, rest = until(term, written.stop, close)
        name = self._rules.add_terminal(value)
        before = terms(self._pieces(written.before_string or written.before_value))
        return f"{terms(self._pieces(written.open))} {key} {before} {name} {rest}"

    def _json_value(self, key: str, schema: Json) -> str:
        written = self._written
        before, close = terms(self._pieces(written.before_value)), terms(self._pieces(written.close))
        return f"{terms(self._pieces(written.open))} {key} {before} {self._value(schema)} {close}"

    def _value(self, schema: Json) -> str:
        if self._written.values is Values.LITERAL:
            return self._literals().value(schema)
        inner = schema if isinstance(schema, dict) else {}
        if self._written.values is Values.JSON and inner.keys() & KEYWORDS <= {"type"}:
            word = _WORDS.get(str(inner.get("type")))
            if word is not None:
                return f"({word})"
        return self._rules.add(json_rule(_with_definitions(inner, self._root, self._param)))

    def _literals(self) -> LiteralRules:
        quote = self._written.quote
        return LiteralRules(self._rules, self._root, self._pieces(quote), quote, self._param)

    def _pieces(self, text: str) -> Pieces:
        return pieces(text, self._special_tokens)


def _is_any(schema: Json) -> bool:
    return schema is True or (isinstance(schema, dict) and not schema.keys() & KEYWORDS)


def _is_union(schema: Json) -> bool:
    """Returns True if the schema is only a choice between types, any value of each: `["string", "null"]`."""
    if not isinstance(schema, dict):
        return False
    if "type" in schema:
        return schema.keys() & KEYWORDS == {"type"}
    options = schema.get("anyOf")
    return isinstance(options, list) and schema.keys() & KEYWORDS == {"anyOf"} and all(map(_is_union, options))


def _with_definitions(schema: Mapping[str, Json], root: Mapping[str, Json], param: str) -> Mapping[str, Json]:
    """Returns a schema together with the definitions that its references point to."""
    references = list(_references({**schema}))
    if not references:
        return schema
    found = {name: root[name] for name in ("$defs", "definitions") if name in root}
    for reference in [*references, *_references(cast("Json", found))]:
        if not isinstance(reference, str) or not reference.startswith(("#/$defs/", "#/definitions/")):
            raise refused(
                "$ref", f"{printable(str(reference))!r} points elsewhere than to $defs, which cannot be enforced", param
            )
    return {**found, **schema}


def _references(schema: Json) -> Sequence[Json]:
    if isinstance(schema, dict):
        inner = [one for name, value in schema.items() if name != "$ref" for one in _references(value)]
        return [schema["$ref"], *inner] if "$ref" in schema else inner
    return [one for item in schema for one in _references(item)] if isinstance(schema, list) else []
