"""Random schemas with `oneOf`, `not` and conditions: what replaces these accepts the same values.

Objects may be closed to properties that they do not list, so that only what is accepted is compared for them.
"""

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from domain.request.json_schema import checked_schema
from tests.support.effort import drawn
from tests.support.text.json_schemas import KINDS, conditions, kinds

KEYS = ("k", "m", "n", "other")
OTHERS = [
    {"type": ["string", "null"], "pattern": "^a"},
    {"type": "number", "multipleOf": 2},
    {"items": {"type": "integer"}, "maxItems": 1},
    {"minProperties": 1, "patternProperties": {"^k$": {"type": "string"}}, "additionalProperties": False},
    {"exclusiveMaximum": 1, "x-order": 1},
    {"$ref": "#/$defs/c"},
]
"""Some whose complement can be stated for some values only."""

VALUES: tuple[Any, ...] = (
    *(*KINDS, 0, 0.5, -1, 3, "", False, [], [1], ["a"], [1, 2]),
    *({}, *({key: value} for key in KEYS for value in KINDS)),
    *({"k": value, name: other} for name in ("m", "n") for value in KINDS for other in KINDS),
)

some = st.one_of(conditions, kinds, st.sampled_from(OTHERS))
schemas = st.one_of(
    st.lists(some, min_size=2, max_size=3).map(lambda choices: {"oneOf": choices}),
    some.map(lambda one: {"oneOf": [{"anyOf": [one, {"type": "null"}]}, {"type": "null"}]}),
    some.map(lambda one: {"not": one}),
    st.tuples(some, some).map(lambda pair: {"if": pair[0], "then": pair[1]}),
)


@pytest.mark.slow
@settings(max_examples=drawn(400), deadline=None)
@given(schema=schemas, definition=some)
def test_a_rewritten_schema_accepts_the_same_values(schema: dict[str, Any], definition: dict[str, Any]):
    schema = {**schema, "$defs": {"c": definition}}
    try:
        found = checked_schema(schema, "schema")
    except InvalidRequest as error:
        event("refused")
        if "is false, which no answer satisfies" not in error.message:
            return
        found = False
    before, after = jsonschema_rs.Draft202012Validator(schema), jsonschema_rs.Draft202012Validator(found)
    for value in VALUES:
        is_valid = before.is_valid(value)
        assert is_valid or not after.is_valid(value), (found, value)
        assert isinstance(value, dict) or is_valid == after.is_valid(value), (found, value)
