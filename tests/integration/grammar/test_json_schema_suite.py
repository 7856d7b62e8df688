"""The JSON Schema Test Suite, as far as an answer can be held to its schemas: what is invalid is never let through.

`tests/data/json_schema_suite`: of draft 2020-12, every group whose keywords are supported, and of the others two a file
to be refused. Groups are [file, description, schema, [[description, instance, whether it is valid]]].
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from adapters.llguidance.library import new_matcher, new_tokenizer, rendered
from application.ports.token_constraint import Vocabulary
from domain.errors import InvalidRequest
from domain.request.grammar import json_schema_grammar
from domain.request.json_schema import UNSUPPORTED
from domain.request.schema_rewriting import REWRITTEN

SUITE = Path(__file__).parents[2] / "data" / "json_schema_suite" / "draft2020-12.json"
EOS = 256


class Group(NamedTuple):
    file: str
    description: str
    schema: Any
    tests: list[tuple[str, Any, bool]]


GROUPS = [Group(*one) for one in json.loads(SUITE.read_text())]
FILES = sorted({group.file for group in GROUPS})

STRICTER: dict[str, set[str]] = {
    "an object that lists properties gets no others": {
        "additionalProperties: additional properties are allowed",
        "not: property absent",
        "properties: doesn't invalidate other properties",
    },
    "properties stand in the order of their schema": {
        "allOf: allOf",
        "allOf: valid",
        "anyOf: both anyOf valid (complex)",
        "const: same object with different property order is valid",
        "dependentRequired: CRLF",
    },
    "whole numbers are written without a fraction": {
        "const: float is valid",
        "const: float one is valid",
        "const: float zero is valid",
        "const: float -2.0 is valid",
        "enum: [0.0] is valid",
        "enum: [1.0] is valid",
        "enum: float one is valid",
        "enum: float zero is valid",
        "type: a float with zero fractional part is an integer",
    },
    "no answer has leap seconds": {
        "date-time: a valid date-time with a leap second, UTC",
        "date-time: a valid date-time with a leap second, with minus offset",
        "time: a valid time string with leap second, Zulu",
        "time: valid leap second, zero time-offset",
        "time: valid leap second, positive time-offset",
        "time: valid leap second, large positive time-offset",
        "time: valid leap second, negative time-offset",
        "time: valid leap second, large negative time-offset",
    },
    "addresses as people write them": {
        "email: a quoted string with a @ in the local part is valid",
        "email: a quoted string with a double dot in the local part is valid",
        "email: a quoted string with a space in the local part is valid",
        "email: an IPv6-address-literal after the @ is valid",
        "ipv6: a long valid ipv6",
        "ipv6: mixed format with double colons between the sections",
        "ipv6: mixed format with leading double colons (ipv4-mapped ipv6 address)",
        "ipv6: mixed format with the ipv4 section as decimal octets",
    },
}
"""What is valid and not let through. Beside these only what calls a format an annotation: it is held to."""


@cache
def tokens() -> Any:
    bytes_alone = (*(bytes([byte]) for byte in range(EOS)), b"")
    return new_tokenizer(Vocabulary(bytes_alone, {EOS: "<eos>"}, frozenset({EOS})))


def takes(matcher: Any, instance: Any) -> bool:
    """Whether a model held to it may write this, compact, and end there."""
    for byte in json.dumps(instance, ensure_ascii=False, separators=(",", ":")).encode():
        if not matcher.compute_bitmask()[byte // 8] >> byte % 8 & 1:
            return False
        matcher.consume_token(byte)
    matcher.compute_bitmask()
    return bool(matcher.is_accepting())


@pytest.mark.parametrize("file", FILES)
def test_what_a_schema_accepts_is_let_through_and_nothing_else(file: str) -> None:
    not_taken = set[str]()
    for group in (group for group in GROUPS if group.file == file and group.tests):
        matcher = new_matcher(tokens(), rendered(json_schema_grammar(group.schema, "x")))
        if matcher.is_error():
            assert file in UNCOMPILED, matcher.get_error()
            continue
        for description, instance, is_valid in group.tests:
            is_taken = takes(matcher.deep_copy(), instance)
            assert is_valid or not is_taken, (group.description, description, instance)
            if is_valid and not is_taken and "only an annotation" not in description:
                not_taken.add(f"{file}: {description}")
    assert not_taken == {one for some in STRICTER.values() for one in some if one.startswith(f"{file}: ")}


UNCOMPILED = {
    "allOf", "anyOf", "maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties",
    "multipleOf", "oneOf", "patternProperties", "ref",
}  # fmt: skip
"""Where compiling refuses some: what nothing satisfies, sizes like 2.0, choices and patterns that are not disjoint."""


@pytest.mark.parametrize("group", [group for group in GROUPS if not group.tests], ids=lambda group: group.description)
def test_what_cannot_be_enforced_is_refused_by_its_keyword(group: Group) -> None:
    with pytest.raises(InvalidRequest) as error:
        json_schema_grammar(group.schema, "x")
    assert error.value.param == "x"
    named = {
        keyword
        for keyword in (*UNSUPPORTED, *REWRITTEN, "$ref", "minProperties")
        if f"keyword {keyword} " in error.value.message
    }
    assert named or group.schema is False


def test_the_pinned_suite_is_not_empty() -> None:
    assert sum(len(group.tests) for group in GROUPS) > 800
