"""Literals with a family's own quotes, as Lark rules, and the parts that rules for arguments share.

    {"type": "object", "properties": {"city": {"type": "string"}}}        {city:<|"|>Bern<|"|>}

A keyword of a JSON schema that cannot be enforced is refused by name.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast
from urllib.parse import unquote

from domain.call_grammar.strings import only, refused, string_term
from domain.errors import InvalidRequest
from domain.printable import printable
from domain.request.chat import Json
from domain.request.grammar import ANY_TEXT, MAX_GRAMMAR_BYTES, Pieces, json_rule, quoted, terms, until
from domain.request.schema_proofs import KEYWORDS
from domain.request.value_check import first_misfit

ANY_KEY = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"


class Member(NamedTuple):
    """A member that may be written."""

    key: str
    schema: Json
    is_required: bool


def listed_members(schema: Mapping[str, Json], param: str) -> list[Member]:
    """Returns an object's members. Raises InvalidRequest for `param` if a required one is not in properties."""
    properties, required = schema.get("properties"), schema.get("required")
    known: Mapping[str, Json] = properties if isinstance(properties, dict) else {}
    wanted = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    for name in wanted:
        if known.get(name, False) is False:
            raise refused(
                "required", f"names {printable(name)!r}, which is not in properties, so it cannot be enforced", param
            )
    must = frozenset(wanted)
    return [Member(key, one, key in must) for key, one in known.items() if one is not False]


def members(written: Sequence[tuple[str, bool]], between: str, rule: Callable[[str], str]) -> str:
    """Returns a term for members in order, each with True if it is required; "" for none. `rule` adds a rule."""
    if not between:
        return " ".join(term if must else f"{term}?" for term, must in written)
    first, later = "", ""  # from here to the end: where nothing stands yet, and behind something
    may_be_empty = True
    for term, must in reversed(written):
        begun = f"{term} {later}"
        choices = [begun] if must or not first else [begun, first]
        first = rule(" | ".join(choices))
        behind = f"{between} {term}" if must else f"({between} {term})?"
        later = rule(f"{behind} {later}")
        may_be_empty = may_be_empty and not must
    return f"{first}?" if first and may_be_empty else first


_BARE_KEY = re.compile(r"[\w.-]+")
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
"""The keywords that apply to values of one type only."""


class Rules:
    """The rules of one tool's arguments, while they are written. `prefix` begins their names."""

    def __init__(self, prefix: str, param: str) -> None:
        self.lines: list[str] = []
        self._prefix = prefix
        self._param = param
        self._num_names = self._num_chars = 0

    def add(self, body: str, name: str = "") -> str:
        """Add a rule and return its name. Raises InvalidRequest where the grammar becomes too long."""
        name = name or self.new_name()
        self.lines.append(f"{name}: {body}")
        self._num_chars += len(self.lines[-1])
        if self._num_chars > MAX_GRAMMAR_BYTES:
            raise InvalidRequest(
                f"{self._param} needs a grammar of more than {MAX_GRAMMAR_BYTES} bytes", param=self._param
            )
        return name

    def add_terminal(self, body: str) -> str:
        return self.add(body, self.new_name().upper())

    def new_name(self) -> str:
        self._num_names += 1
        return f"{self._prefix}_{self._num_names}"


class LiteralRules:
    """Rules for one value. `root`: the schema that references point into. `quote`: as written, and in the tokenizer's
    pieces."""

    def __init__(self, rules: Rules, root: Mapping[str, Json], pieces: Pieces, quote: str, param: str) -> None:
        self._rules = rules
        self._root = root
        self._pieces = pieces
        self._quote = quote
        self._param = param
        self._by_reference: dict[str, str] = {}
        self._any = ""

    def value(self, schema: Json) -> str:
        """Returns a term for the values that a schema accepts. Raises InvalidRequest."""
        try:
            return self._value(schema)
        except RecursionError:
            raise refused("$ref", "is nested too deeply to be enforced", self._param) from None

    def string(self, terminal: str) -> str:
        """Returns a term for strings that match a terminal."""
        text, rest = until(terminal, self._quote, self._pieces)
        return f"{terms(self._pieces)} {self._rules.add_terminal(text)} {rest}"

    def _value(self, schema: Json) -> str:
        if schema is False or not isinstance(schema, dict | bool):
            raise refused("false", "allows no value, which cannot be enforced", self._param)
        stated: dict[str, Json] = {} if isinstance(schema, bool) else schema
        keywords = {name: one for name, one in stated.items() if name in KEYWORDS}
        if not keywords:
            return self._any_value()
        if "$ref" in keywords:
            only(keywords, {"$ref"}, self._param)
            return self._referred(str(keywords["$ref"]))
        for keyword in ("enum", "const"):
            if keyword in keywords:
                return self._listed(keywords, keyword)
        if "anyOf" in keywords:
            return self._choice(keywords)
        if isinstance(every := keywords.get("allOf"), list) and len(every) == 1:
            only(keywords, {"allOf"}, self._param)
            return self._value(every[0])
        only(keywords, {"type", *(one for some in _KEYWORDS.values() for one in some)}, self._param)
        types: Json = keywords.get("type", list(_TYPES))
        names = [one for one in (types if isinstance(types, list) else [types]) if isinstance(one, str)]
        return self._rules.add(" | ".join(self._typed(name, keywords) for name in dict.fromkeys(names)))

    def _typed(self, name: str, keywords: Mapping[str, Json]) -> str:
        match name:
            case "string":
                known = _KEYWORDS["string"]
                return self.string(
                    string_term({key: one for key, one in keywords.items() if key in known}, self._param)
                )
            case "number" | "integer":
                known = _KEYWORDS["number"]
                return self._rules.add(
                    json_rule({"type": name, **{key: keywords[key] for key in keywords if key in known}})
                )
            case "boolean":
                return '"true" | "false"'
            case "null":
                return '"null"'
            case "array":
                return self._array(keywords)
            case "object":
                return self._object(keywords)
            case _:
                raise refused("type", f"{printable(name)!r} cannot be enforced", self._param)

    def _array(self, keywords: Mapping[str, Json]) -> str:
        first = keywords.get("prefixItems", [])
        fixed = [self._value(one) for one in first] if isinstance(first, list) else []
        least, most = keywords.get("minItems", 0), keywords.get("maxItems")
        num_least = least if isinstance(least, int) else 0
        num_most = most if isinstance(most, int) else None
        items = keywords.get("items", True)
        if fixed and not num_least <= len(fixed) <= (len(fixed) if num_most is None else num_most):
            raise refused(
                "prefixItems", "cannot be enforced with minItems or maxItems that differ from its length", self._param
            )
        if num_most == 0 or (items is False and not fixed):
            if num_least:
                raise refused("minItems", "requires items that no keyword allows", self._param)
            return '"[" "]"'
        if fixed:
            return f'"[" {members([(one, True) for one in fixed], _COMMA, self._rules.add)} "]"'
        item = self._value(items)
        more = f"({_COMMA} {item})" + _times(max(num_least - 1, 0), None if num_most is None else num_most - 1)
        return f'"[" {item} {more} "]"' if num_least else f'"[" ({item} {more})? "]"'

    def _object(self, keywords: Mapping[str, Json]) -> str:
        listed = listed_members(keywords, self._param)
        if listed:
            written = [(self._rules.add(f'{self._key(key)} ":" {self._value(one)}'), must) for key, one, must in listed]
            return f'"{{" {members(written, _COMMA, self._rules.add)} "}}"'
        others = keywords.get("additionalProperties", not keywords.get("properties"))
        if others is False:
            return '"{" "}"'
        member = self._rules.add(f'{ANY_KEY} ":" {self._value(others)}')
        return f'"{{" ({member} ({_COMMA} {member})*)? "}}"'

    def _key(self, key: str) -> str:
        if _BARE_KEY.fullmatch(key):
            return quoted(key)
        if self._quote in key:
            raise refused(
                "properties", f"names {printable(key)!r}, which this format cannot write; rename it", self._param
            )
        return f"{terms(self._pieces)} {quoted(key)} {terms(self._pieces)}"

    def _listed(self, keywords: Mapping[str, Json], keyword: str) -> str:
        listed = keywords["enum"] if keyword == "enum" else [keywords["const"]]
        only(keywords, {"enum", "const", "type"}, self._param)
        others = {name: one for name, one in keywords.items() if name != "enum"}  # each is listed: not looked for again
        fitting = [one for one in listed if first_misfit(one, others) is None] if isinstance(listed, list) else []
        if not fitting:
            raise refused(keyword, "lists no value that fits the other keywords", self._param)
        return self._rules.add(" | ".join(self._constant(one) for one in fitting))

    def _constant(self, value: Json) -> str:
        if isinstance(value, str):
            if self._quote in value:
                raise refused("enum", f"lists {printable(value)!r}, which this format cannot write", self._param)
            return f"{terms(self._pieces)} {quoted(value) if value else ''} {terms(self._pieces)}"
        if isinstance(value, list):
            return f'"[" {f" {_COMMA} ".join(map(self._constant, value))} "]"'
        if isinstance(value, dict):
            inner = [f'{self._key(key)} ":" {self._constant(one)}' for key, one in value.items()]
            return f'"{{" {f" {_COMMA} ".join(inner)} "}}"'
        return quoted(json.dumps(value))

    def _choice(self, keywords: Mapping[str, Json]) -> str:
        only(keywords, {"anyOf"}, self._param)
        found = keywords["anyOf"]
        options: Sequence[Json] = found if isinstance(found, list) else []
        return self._rules.add(" | ".join(map(self._value, options)))

    def _referred(self, reference: str) -> str:
        if reference in self._by_reference:
            return self._by_reference[reference]
        name = self._by_reference[reference] = self._rules.new_name()
        value = self._resolved({"$ref": reference})
        return self._rules.add(self._value(value), name)

    def _resolved(self, schema: Json) -> Json:
        """Returns the schema that a reference points to, after one step; another schema as it is."""
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        reference, value = str(schema["$ref"]), cast("Json", self._root)
        for part in reference[1:].split("/")[1:]:
            value = value.get(unquote(part).replace("~1", "/").replace("~0", "~")) if isinstance(value, dict) else None
        if not reference.startswith("#") or not isinstance(value, dict | bool):
            raise refused("$ref", f"{printable(reference)!r} cannot be enforced", self._param)
        return value

    def _any_value(self) -> str:
        if not self._any:
            name = self._any = self._rules.new_name()
            number, string = self._rules.add(json_rule({"type": "number"})), self.string(ANY_TEXT)
            member = self._rules.add(f'{ANY_KEY} ":" {name}')
            inner = [f'"[" ({name} ({_COMMA} {name})*)? "]"', f'"{{" ({member} ({_COMMA} {member})*)? "}}"']
            words = ['"true"', '"false"', '"null"']
            self._rules.add(" | ".join([string, number, *words, *inner]), name)
        return self._any


_COMMA = '","'


def _times(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}" if least or most is not None else "*"
