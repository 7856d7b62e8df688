"""The request fields that constrain the form of an answer, OpenAI's and vLLM's, as one grammar.

    field                                                    grammar
    response_format {"type": "text"}                         none
    response_format {"type": "json_object"}                  any JSON object
    response_format {"type": "json_schema", "json_schema"    what `schema` accepts, `strict` or not; a schema that
      {"name", "schema", "strict"}} or with these beside     cannot be enforced is refused
      "type", as in the Responses dialect's text.format
    structured_outputs {"json" | "json_object" | "regex"     as each says; exactly one of them
      | "choice" | "grammar"}
    guided_json, guided_regex, guided_choice,                the same under their older names
      guided_grammar

Null is absent. A schema may be given as JSON text. Grammars are Lark's.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from domain.errors import InvalidRequest
from domain.printable import printable
from domain.request.grammar import (
    MAX_GRAMMAR_BYTES,
    Grammar,
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)

GRAMMAR_FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


class FieldGrammar(NamedTuple):
    """A grammar and the field that it is from: the client's name for the domain's `grammar` in later errors."""

    grammar: Grammar
    field: str


def grammar_of(fields: Mapping[str, object]) -> FieldGrammar | None:
    """The grammar that these of `GRAMMAR_FIELDS`, decoded from JSON, request; None without one.

    Raises InvalidRequest, naming the field."""
    found: list[FieldGrammar] = []
    for name in GRAMMAR_FIELDS:
        value = fields.get(name)
        if value is None:
            continue
        if name == "response_format":
            found += response_format_grammar(value, name)
        elif name == "structured_outputs":
            found.append(_structured_outputs(value, name))
        else:
            found.append(FieldGrammar(_KINDS[name.removeprefix("guided_")](value, name), name))
    if len(found) > 1:
        raise InvalidRequest(f"{found[1].field} and {found[0].field} exclude each other", param=found[1].field)
    return found[0] if found else None


def response_format_grammar(value: object, field: str) -> list[FieldGrammar]:
    """The grammar of `response_format`, or of a field like it; none for plain text. Raises InvalidRequest."""
    format = _object(value, field)
    match format.get("type"):
        case "text":
            return []
        case "json_object":
            return [FieldGrammar(json_object_grammar(), field)]
        case "json_schema":
            pass
        case _:
            raise InvalidRequest(f"{field}.type must be text, json_object or json_schema", param=field)
    inner, path = format, field
    if "schema" not in format:
        path = f"{field}.json_schema"
        inner = _object(format.get("json_schema"), path)
    if inner.get("schema") is None:
        raise InvalidRequest(f"{path}.schema is missing", param=f"{path}.schema")
    return [FieldGrammar(_json(inner["schema"], f"{path}.schema"), f"{path}.schema")]


def form_grammar(value: object, field: str) -> Grammar | None:
    """The grammar of a field like `response_format`; None for plain text or null. Raises InvalidRequest."""
    found = [] if value is None else response_format_grammar(value, field)
    return found[0].grammar if found else None


def _structured_outputs(value: object, field: str) -> FieldGrammar:
    wanted = {name: one for name, one in _object(value, field).items() if one is not None and name in _KINDS}
    if len(wanted) != 1:
        raise InvalidRequest(f"{field} must have exactly one of {', '.join(_KINDS)}", param=field)
    ((name, one),) = wanted.items()
    return FieldGrammar(_KINDS[name](one, f"{field}.{name}"), f"{field}.{name}")


def _json(value: object, field: str) -> Grammar:
    if isinstance(value, str):
        try:
            value = json.loads(value) if len(value) <= MAX_GRAMMAR_BYTES else value
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{field} is no JSON: {printable(str(error))}", param=field) from error
    if not isinstance(value, dict | bool):
        raise InvalidRequest(f"{field} must be a JSON schema: an object or a boolean", param=field)
    return json_schema_grammar(cast("dict[str, Any] | bool", value), field)


def _json_object(value: object, field: str) -> Grammar:
    if value is not True:
        raise InvalidRequest(f"{field} must be true", param=field)
    return json_object_grammar()


def _choice(value: object, field: str) -> Grammar:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in cast("list[object]", value)):
        raise InvalidRequest(f"{field} must be a list of strings", param=field)
    return choice_grammar(cast("list[str]", value), field)


def _regex(value: object, field: str) -> Grammar:
    return regex_grammar(_text(value, field), field)


def _lark(value: object, field: str) -> Grammar:
    return lark_grammar(_text(value, field), field)


_KINDS: Mapping[str, Callable[[object, str], Grammar]] = {
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
}


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be a string", param=field)
    return value


def _object(value: object, field: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object", param=field)
    return cast("dict[str, object]", value)
