"""Keywords said by others: exactly where their complement can be stated, else refused by place."""

import re
from typing import Any

import pytest

from domain.errors import InvalidRequest
from domain.request.json_schema import checked_schema
from domain.request.value_check import first_misfit

A, B = (
    {"properties": {"k": {"const": "a"}}, "required": ["k"]},
    {"properties": {"k": {"const": "b"}}, "required": ["k"]},
)


def one_of(*branches: Any, **siblings: Any) -> dict[str, Any]:
    return {**siblings, "oneOf": list(branches)}


DISJOINT = {
    "types": one_of({"type": "integer"}, {"type": ["string", "null"]}),
    "constants": one_of({"const": 1}, {"enum": [2, "1"]}),
    "true is not 1": one_of({"const": True}, {"const": 1}),
    "required property": one_of({"type": "object", **A}, {"type": "object", **B}),
    "forbidden property": one_of(
        {"type": "object", "required": ["a"]},
        {"type": "object", "properties": {"b": {}}, "additionalProperties": False},
    ),
    "range": one_of({"type": "number", "maximum": 3}, {"type": "number", "exclusiveMinimum": 3}),
    "length": one_of({"type": "array", "maxItems": 1}, {"type": "array", "minItems": 2}),
    "choices": one_of({"anyOf": [{"const": 1}, {"const": 2}]}, {"oneOf": [{"const": 3}, {"const": 4}]}),
    "allOf": one_of({"allOf": [{"type": "object"}, A]}, {"type": "object", **B}),
    "siblings": one_of(A, B, type="object"),
}


@pytest.mark.parametrize("schema", DISJOINT.values(), ids=DISJOINT)
def test_one_of_choices_that_no_value_satisfies_both_is_any_of(schema: dict[str, Any]):
    found = checked_schema(schema, "field")
    assert "oneOf" not in found
    assert "allOf" not in found
    assert len(found["anyOf"]) == len(schema["oneOf"])


def test_references_are_followed_and_endless_ones_end():
    definitions = {"a": {"type": "object", **A}, "b": {"type": "object", **B}, "loop": {"$ref": "#/$defs/loop"}}
    references = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]
    assert checked_schema({"oneOf": references, "$defs": definitions}, "field")["anyOf"] == references
    with pytest.raises(InvalidRequest, match="keyword oneOf at #/items has choices 0 and 1"):
        checked_schema({"items": one_of({"$ref": "#/$defs/loop"}, {"type": "null"}), "$defs": definitions}, "field")


NULL = {"type": "null"}
NULLABLE = {
    "pattern": {"type": ["string", "null"], "pattern": "a"},
    "items": {"type": ["array", "null"], "items": {"type": "integer"}},
    "multipleOf": {"anyOf": [{"type": "integer", "multipleOf": 2}, NULL]},
    "patternProperties": {"oneOf": [{"type": "object", "patternProperties": {"^a": NULL}}, NULL]},
    "const": {"anyOf": [{"const": [1]}, {"const": None}]},
    "$ref": {"anyOf": [{"$ref": "#/$defs/node"}, NULL]},
}


@pytest.mark.parametrize("schema", NULLABLE.values(), ids=NULLABLE)
def test_a_complement_is_stated_for_the_types_that_the_other_choice_leaves(schema: dict[str, Any]):
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": NULL}
    found = checked_schema({"oneOf": [schema, NULL], "$defs": {"node": node}}, "field")
    assert first_misfit(None, found) is not None


def test_unknown_keywords_are_annotations():
    found = checked_schema(
        {"not": {"type": "string", "x-order": 1, "enumNames": []}, "type": ["string", "null"]}, "field"
    )
    assert found["allOf"] == [{"type": ["array", "boolean", "null", "number", "object"]}]
    names = {"propertyNames": {"$ref": "#/$defs/name"}, "$defs": {"name": {"pattern": "^a", "x-name": "a"}}}
    assert checked_schema(names, "field")["allOf"] == [
        {"patternProperties": {"^a": True}, "additionalProperties": False}
    ]


REFUSED = {
    "oneOf at #/items": {"items": one_of({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"})},
    "not at #/$defs/a": {"$ref": "#/$defs/a", "$defs": {"a": {"not": {"pattern": "^a"}}}},
    "if at #/properties/p": {"properties": {"p": {"if": {"items": {"type": "null"}}, "then": {"maxItems": 2}}}},
    "dependentRequired at #": {"dependentRequired": {name: ["x"] for name in "abcdefg"}},
    "dependentRequired at #/items": {"items": {"dependentRequired": {"a": 3}}},
    "propertyNames at #": {"propertyNames": {"not": {"const": "a"}}},
}


@pytest.mark.parametrize(("place", "schema"), REFUSED.items(), ids=REFUSED)
def test_what_no_other_keywords_say_is_refused_by_place(place: str, schema: dict[str, Any]):
    with pytest.raises(InvalidRequest, match=f"the keyword {re.escape(place)} "):
        checked_schema(schema, "field")


def test_schemas_around_count_only_where_no_reference_uses_one_elsewhere():
    inner = one_of(A, B)  # anything but an object satisfies both
    around: dict[str, Any] = {"type": "object", "allOf": [inner]}
    assert checked_schema(around, "field")["allOf"] == [{"anyOf": [A, B]}]
    found = checked_schema({"properties": {"x": around, "y": {"$ref": "#/properties/x/allOf/0"}}}, "field")
    assert found["properties"]["x"]["allOf"] != [{"anyOf": [A, B]}]


def test_proofs_end_where_choices_multiply():
    choice = {"anyOf": [{"properties": {f"p{number}": {"minLength": number}}} for number in range(6)]}
    many = {"type": "object", "allOf": [choice] * 40}
    with pytest.raises(InvalidRequest, match="oneOf"):
        checked_schema(one_of(many, {**many, "maxProperties": 99}), "field")
