"""The request fields that constrain the form of an answer, OpenAI's and vLLM's, as one grammar.

    field                                                    grammar
    response_format {"type": "text"}                         none
    response_format {"type": "json_object"}                  any JSON object; with `schema` as the next
    response_format {"type": "json_schema", "json_schema"    what `schema` accepts, `strict` or not; a schema that
      {"name", "schema", "strict"}} or with these beside     cannot be enforced is refused
      "type", as in the Responses dialect's text.format
    structured_outputs {"json" | "json_object" | "regex"     as each says; exactly one of them
      | "choice" | "grammar"}
    guided_json, guided_regex, guided_choice,                the same under their older names
      guided_grammar
    json_schema                                              the same under llama.cpp's name
    bad_words                                                any text without these

Null is absent. A schema may be given as JSON text. Grammars are Lark's.
"""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Struct

from domain.errors import InvalidRequest, require
from domain.half_pairs import without_halves
from domain.printable import printable
from domain.request.grammar import (
    MAX_GRAMMAR_BYTES,
    Grammar,
    avoiding_grammar,
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from interfaces.http.fields.parameters import supported
from interfaces.http.fields.sampling_fields import SamplingFields
from interfaces.http.incoming.json_body import converted

Schema: TypeAlias = str | bool | dict[str, Any]


class SchemaFormat(Struct):
    schema: Schema | None = None


class ResponseFormat(SchemaFormat, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class StructuredOutputs(Struct):
    json: Schema | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class GrammarFields(SamplingFields, kw_only=True):
    """The fields of a body that constrain its answer, after those for sampling."""

    response_format: Annotated[
        ResponseFormat | None,
        supported("`text`, `json_object` (also with a `schema`), `json_schema`, enforced whether `strict` or not"),
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, supported("one of `json`, `json_object`, `regex`, `choice`, `grammar` (Lark)")
    ] = None
    guided_json: Annotated[Schema | None, supported("as `structured_outputs.json`; a schema, or its JSON text")] = None
    guided_regex: Annotated[str | None, supported("as `structured_outputs.regex`")] = None
    guided_choice: Annotated[list[str] | None, supported("as `structured_outputs.choice`")] = None
    guided_grammar: Annotated[str | None, supported("as `structured_outputs.grammar`")] = None
    json_schema: Annotated[Schema | None, supported("as `structured_outputs.json`")] = None
    bad_words: Annotated[
        list[str] | None, supported("the text of the answer has none of them; with no other field for its form")
    ] = None

    @property
    def grammar(self) -> Grammar | None:
        """Raises InvalidRequest, naming the field."""
        found = {name: grammar for name in self._present() if (grammar := self._grammar(name)) is not None}
        if len(found) > 1:
            first, second, *_ = found
            raise InvalidRequest(f"{second} and {first} exclude each other", param=second)
        return next(iter(found.values()), None)

    @property
    def grammar_names(self) -> dict[str, str]:
        """The client's name for the domain's `grammar`, for `renamed`; without a field for one, tools are it."""
        return {"grammar": next(iter(self._present()), "tools")}

    def _present(self) -> list[str]:
        """The fields with a value; some clients send empty ones for none."""
        return [name for name in _FIELDS if getattr(self, name) not in (None, "", [])]

    def _grammar(self, name: str) -> Grammar | None:
        match getattr(self, name):
            case ResponseFormat() as format:
                return _format_grammar(format, name)
            case StructuredOutputs() as outputs:
                wanted = [kind for kind in _KINDS if getattr(outputs, kind) is not None]
                require(len(wanted) == 1, name, f"must have exactly one of {', '.join(_KINDS)}")
                return _KINDS[wanted[0]](getattr(outputs, wanted[0]), f"{name}.{wanted[0]}")
            case value if name == "bad_words":
                return avoiding_grammar(value, name)
            case value:
                return _KINDS[name.removeprefix("guided_").removesuffix("_schema")](value, name)


def form_grammar(value: Mapping[str, Any] | None, field: str) -> Grammar | None:
    """Returns the grammar of a field like `response_format`; None for plain text or null. Raises InvalidRequest."""
    return None if value is None else _format_grammar(converted(value, ResponseFormat, field), field)


def _format_grammar(format: ResponseFormat, field: str) -> Grammar | None:
    if format.type == "text":
        return None
    schema, path = format.schema, f"{field}.schema"
    if format.type == "json_object":
        return json_object_grammar() if schema is None else _json(schema, path)
    if schema is None:
        path = f"{field}.json_schema.schema"
        schema = None if format.json_schema is None else format.json_schema.schema
    if schema is None:
        raise InvalidRequest(f"{path} is missing", param=path)
    return _json(schema, path)


def _json(value: Schema, field: str) -> Grammar:
    if isinstance(value, str):
        try:
            value = json.loads(without_halves(value.encode()).decode()) if len(value) <= MAX_GRAMMAR_BYTES else value
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{field} is no JSON: {printable(str(error))}", param=field) from error
    if not isinstance(value, dict | bool):
        raise InvalidRequest(f"{field} must be a JSON schema: an object or a boolean", param=field)
    return json_schema_grammar(value, field)


def _json_object(value: bool, field: str) -> Grammar:
    require(value, field, "must be true")
    return json_object_grammar()


_KINDS: Mapping[str, Callable[[Any, str], Grammar]] = {
    "json": _json,
    "json_object": _json_object,
    "regex": regex_grammar,
    "choice": choice_grammar,
    "grammar": lark_grammar,
}

_FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "bad_words",
)
