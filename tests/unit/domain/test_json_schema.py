"""What a schema may ask for, and how it is told what it may not."""

from typing import Any

import pytest

from domain.errors import InvalidRequest
from domain.request.json_schema import MAX_DEPTH, UNSUPPORTED, checked_schema

VALUES: dict[str, Any] = {"uniqueItems": True, "unevaluatedItems": False, "unevaluatedProperties": False}


def refused(schema: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        checked_schema(schema, "field")
    assert caught.value.param == "field"
    assert caught.value.code == "invalid_request"
    return caught.value.message


@pytest.mark.parametrize("keyword", sorted(UNSUPPORTED))
@pytest.mark.parametrize(
    ("place", "wrapped"),
    [
        ("#", lambda schema: schema),
        ("#/properties/a", lambda schema: {"properties": {"a": schema}}),
        ("#/items/anyOf/1", lambda schema: {"items": {"anyOf": [{}, schema]}}),
        (
            "#/$defs/x/additionalProperties",
            lambda schema: {"$ref": "#/$defs/x", "$defs": {"x": {"additionalProperties": schema}}},
        ),
        ("#/prefixItems/0", lambda schema: {"prefixItems": [schema]}),
        ("#/patternProperties/^a", lambda schema: {"patternProperties": {"^a": schema}}),
    ],
    ids=["root", "property", "option", "definition", "prefix", "pattern"],
)
def test_what_is_not_supported_is_refused_by_name_and_place(keyword: str, place: str, wrapped: Any):
    message = refused(wrapped({"type": "string", keyword: VALUES.get(keyword, {})}))
    assert f"keyword {keyword} at {place} " in message


def test_names_and_values_are_no_keywords():
    schema = {
        "additionalProperties": {},
        "properties": {"not": {"const": {"if": 1}}, "uniqueItems": {"enum": [{"not": {}}], "default": {"else": 1}}},
        "required": ["not"],
        "examples": [{"contains": 1}],
    }
    assert checked_schema(schema, "field") == schema


def test_what_changes_nothing_is_left_out():
    schema = {"type": "array", "uniqueItems": False, "items": {"type": "string", "format": "binary"}}
    assert checked_schema(schema, "field") == {"type": "array", "items": {"type": "string"}}
    assert checked_schema({"format": "uuid"}, "field") == {"format": "uuid"}
    assert checked_schema({"format": {}}, "field") == {}


@pytest.mark.parametrize("reference", ["#", "#/$defs/a~1b", "#/$defs/list/prefixItems/0", "#here", "#/$defs/a%20b"])
def test_references_into_the_schema_are_kept(reference: str):
    definitions = {"a/b": {"$anchor": "here"}, "a b": True, "list": {"prefixItems": [True]}}
    schema = {"$defs": definitions, "items": {"$ref": reference}}
    assert checked_schema(schema, "field") == schema


NOWHERE = (
    "#/$defs/b",
    "http://example.com/a",
    "#nowhere",
    "a.json",
    3,
    "#/$defs/a/type",
    f"#/prefixItems/{'1' * 5_000}",
)


@pytest.mark.parametrize("reference", NOWHERE, ids=map(str, range(len(NOWHERE))))
def test_references_to_nowhere_are_refused_by_place(reference: object):
    schema = {"$defs": {"a": {"type": "string"}}, "items": {"$ref": reference}, "prefixItems": [{}]}
    assert "keyword $ref at #/items points to" in refused(schema)


def test_more_properties_than_can_be_known_to_differ_are_refused():
    assert checked_schema({"minProperties": 2, "required": ["a"]}, "field")
    assert "minProperties at #" in refused({"minProperties": 3, "required": ["a"]})


@pytest.mark.parametrize("schema", [False, [], "{}", None, {"items": 3}, {"properties": []}, {"anyOf": [{}, None]}])
def test_what_is_no_schema_is_refused(schema: object):
    assert refused(schema)


def test_a_schema_may_be_true():
    assert checked_schema(True, "field") == {}


def test_depth_and_size_are_bounded_before_anything_recurses():
    deep: dict[str, Any] = {}
    for _ in range(200_000):
        deep = {"items": deep}
    assert f"deeper than {MAX_DEPTH}" in refused(deep)
    while "items" in deep:  # taking it apart by hand: the interpreter would recurse
        deep = deep["items"]
    assert "larger than" in refused({"enum": list(range(30_000))})


def test_an_object_that_lists_its_properties_gets_no_others():
    inner = {"properties": {"b": {}}, "required": ["b"]}
    found = checked_schema({"properties": {"a": inner}}, "field")
    assert found["additionalProperties"] is False
    assert found["properties"] == {"a": {**inner, "additionalProperties": False}}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "patternProperties": {"^b": {}}},
        {"properties": {"a": {}}, "required": ["b"]},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {}}}]},
        {"$defs": {"d": {"properties": {"a": {}}}}, "$ref": "#/$defs/d", "properties": {"b": {}}},
    ],
    ids=["open", "patterns", "unlisted", "allOf", "anyOf beside", "ref beside"],
)
def test_an_object_stays_open_where_others_may_be_meant(schema: dict[str, Any]):
    assert checked_schema(schema, "field") == schema


def test_long_names_are_not_repeated_for_every_place_below_them():
    inner = {f"p{number}": {"type": "string"} for number in range(3_000)}
    schema = {"properties": {"n" * 200_000: {"properties": {**inner, "last": {"uniqueItems": True}}}}}
    assert len(refused(schema)) < 500


def test_definitions_that_nothing_refers_to_are_left_out():
    definitions = {"a": {"properties": {"b": {"type": "null"}}}, "unused": {"uniqueItems": True}}
    found = checked_schema({"items": {"$ref": "#/$defs/a/properties/b"}, "$defs": definitions}, "field")
    assert found["$defs"] == {"a": {"properties": {"b": {"type": "null"}}, "additionalProperties": False}}


def test_a_reference_into_what_is_rewritten_is_refused_by_place():
    schema = {"items": {"$ref": "#/oneOf/0"}, "oneOf": [{"type": "array"}, {"type": "null"}]}
    assert "keyword $ref at #/items points to '#/oneOf/0', which is rewritten" in refused(schema)
