"""Request fields to grammars, and errors that name the field."""

from typing import Any

import pytest

from domain.errors import InvalidRequest
from domain.request.grammar import Grammar, GrammarKind
from interfaces.http.incoming.json_body import converted
from interfaces.http.openai.completions import CompletionRequest

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{}},"additionalProperties":false}'


def grammar_of(fields: dict[str, Any]) -> Grammar | None:
    return converted({"prompt": "x", **fields}, CompletionRequest, "").grammar


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "json_object"}}, Grammar(GrammarKind.JSON_OBJECT)),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, Grammar(GrammarKind.JSON_SCHEMA, TEXT)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            Grammar(GrammarKind.JSON_SCHEMA, TEXT),
        ),
        (
            {"response_format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}},
            Grammar(GrammarKind.JSON_SCHEMA, TEXT),
        ),
        ({"guided_json": TEXT}, Grammar(GrammarKind.JSON_SCHEMA, TEXT)),
        ({"guided_json": r'{"const": "\ud83d"}'}, Grammar(GrammarKind.JSON_SCHEMA, '{"const":"�"}')),
        ({"guided_regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
        ({"guided_choice": ["a", "é", "a"]}, Grammar(GrammarKind.CHOICE, '["a", "é"]')),
        ({"guided_grammar": 'start: "a"'}, Grammar(GrammarKind.LARK, 'start: "a"')),
        (
            {"structured_outputs": {"json": SCHEMA, "regex": None, "disable_any_whitespace": True}},
            Grammar(GrammarKind.JSON_SCHEMA, TEXT),
        ),
        ({"structured_outputs": {"json_object": True}}, Grammar(GrammarKind.JSON_OBJECT)),
        ({"json_schema": SCHEMA}, Grammar(GrammarKind.JSON_SCHEMA, TEXT)),
        (
            {"bad_words": ["a.b", "c"]},
            Grammar(GrammarKind.LARK, "start: TEXT\nTEXT: /(?s:.*)/ & ~/(?s:.*)(a\\.b|c)(?s:.*)/\n"),
        ),
        ({"structured_outputs": {"choice": ["a"]}}, Grammar(GrammarKind.CHOICE, '["a"]')),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_field_has_its_grammar(fields: dict[str, Any], grammar: Grammar):
    assert grammar_of(fields) == grammar


@pytest.mark.parametrize("fields", [{}, {"response_format": None}, {"response_format": {"type": "text"}}])
def test_plain_text_has_none(fields: dict[str, Any]):
    assert grammar_of(fields) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object", "schema": {"not": {}}}}, "response_format.schema"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": 3}, "guided_json"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"guided_regex": "a" * 300_000}, "guided_regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]"),
        ({"guided_choice": [str(number) for number in range(2_000)]}, "guided_choice"),
        ({"guided_grammar": "root ::= [a]"}, "guided_grammar"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], param: str):
    with pytest.raises(InvalidRequest) as caught:
        grammar_of(fields)
    assert caught.value.param == param
    assert param in caught.value.message
