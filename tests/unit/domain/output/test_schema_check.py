"""Faults of calls are reported; every reported fault is one."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.output.schema_check import call_problems, joined_calls
from domain.request.chat import ToolCall, ToolSpec
from domain.request.stream import CallProblem, ProblemKind, TextDelta, ToolCallDelta
from domain.request.value_check import first_misfit
from tests.support.http.replay.transcripts import TOOLS


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("rm", "{}", ProblemKind.UNKNOWN_TOOL),
        ("now", '{"a": ', ProblemKind.MALFORMED_ARGUMENTS),
        ("now", "[]", ProblemKind.MALFORMED_ARGUMENTS),
        ("now", '{"a": NaN}', ProblemKind.MALFORMED_ARGUMENTS),
        ("now", '{"a": ' + "[" * 100_000, ProblemKind.MALFORMED_ARGUMENTS),
        ("get_weather", '{"days": 3}', ProblemKind.SCHEMA_MISMATCH),
        ("get_weather", '{"city": 3}', ProblemKind.SCHEMA_MISMATCH),
        ("get_weather", '{"city": "x", "places": ["a", 1]}', ProblemKind.SCHEMA_MISMATCH),
        ("get_weather", '{"city": "x", "days": 3, "other": 1}', None),
        ("now", '{"anything": 1}', None),
        ("get_weather", '{"city": "x", "days": ' + "9" * 400 + "}", None),
    ],
)
def test_problems_by_kind(name: str, arguments: str, kind: ProblemKind | None) -> None:
    found = call_problems([ToolCall("id", name, arguments)], TOOLS)
    assert [(problem.call_id, problem.kind) for problem in found] == ([] if kind is None else [("id", kind)])


def test_details_name_the_place() -> None:
    calls = [ToolCall("1", "get_weather", '{"city": "x", "places": ["a", 1]}'), ToolCall("2", "rm", "{}")]
    assert call_problems(calls, TOOLS) == (
        CallProblem("1", ProblemKind.SCHEMA_MISMATCH, "the arguments for get_weather: places[1] is not of type string"),
        CallProblem("2", ProblemKind.UNKNOWN_TOOL, "the tool 'rm' is not in tools"),
    )


def test_calls_are_joined_from_deltas() -> None:
    deltas = (
        TextDelta("x"),
        ToolCallDelta(0, "a", "now"),
        ToolCallDelta(0, arguments="{"),
        ToolCallDelta(0, arguments="}"),
        ToolCallDelta(1, "b", "now", "{}"),
    )
    assert joined_calls(deltas) == (ToolCall("a", "now", "{}"), ToolCall("b", "now", "{}"))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([1.0, 2.5]) | st.sampled_from(["", "a", "bb"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)
_TYPES = ["string", "integer", "number", "boolean", "array", "object", "null"]


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(_TYPES) | st.lists(st.sampled_from(_TYPES), min_size=1, max_size=2, unique=True),
            "enum": st.lists(values, min_size=1, max_size=3),
            "const": values,
            "minimum": st.integers(-3, 3),
            "exclusiveMaximum": st.integers(-3, 3),
            "minLength": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "required": st.lists(st.sampled_from("ab"), unique=True),
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
        },
    )


schemas = _schemas(_schemas(_schemas(st.just({}))))


@given(values, schemas)
def test_on_these_keywords_a_misfit_is_what_a_validator_calls_invalid(value: Any, schema: dict[str, Any]) -> None:
    is_valid = jsonschema_rs.validator_for(schema).is_valid(value)
    assert (first_misfit(value, schema) is None) == is_valid


def test_what_is_not_looked_at_is_no_misfit() -> None:
    tool = ToolSpec("f", "", {"properties": {"a": {"$ref": "#/x", "type": "string"}, "b": {"pattern": "(a+)+$"}}})
    assert call_problems([ToolCall("1", "f", json.dumps({"a": 1, "b": "a" * 50 + "b"}))], (tool,)) == ()
