"""A sample of JSONSchemaBench: no invalid instance can be written, and a schema that is refused is refused by place.

`tests/data/json_schema_bench` holds 279 schemas with their instances (NOTICE.txt)."""

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from adapters.llguidance.library import new_matcher, rendered
from domain.errors import InvalidRequest
from domain.request.grammar import Grammar, json_schema_grammar
from tests.integration.grammar.test_json_schema_suite import takes, tokens

SAMPLE = Path(__file__).parents[2] / "data" / "json_schema_bench" / "sample.json.gz"
UNENFORCED_FORMATS = {"iri", "regex", "uri-reference", "uri-template"}
PLACE = re.compile(r"^x: the keyword \S+ at #\S* |^x.* is larger than ")


@cache
def sample() -> list[tuple[str, str, Any, list[tuple[Any, bool]]]]:
    return json.loads(gzip.decompress(SAMPLE.read_bytes()))


def formats(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        here = {schema["format"]} if isinstance(schema.get("format"), str) else set[str]()
        return here.union(*map(formats, schema.values()))
    return set[str]().union(*map(formats, schema)) if isinstance(schema, list) else set[str]()


def checked(schema: Any) -> tuple[str, Grammar | None]:
    try:
        return "", json_schema_grammar(schema, "x")
    except InvalidRequest as error:
        return error.message, None


SETS = sorted({one[0] for one in sample()})
ENFORCED = {
    "BFCL": 12,
    "Github_easy": 24,
    "Github_hard": 18,
    "Github_medium": 29,
    "Github_trivial": 12,
    "Glaiveai2K": 18,
    "Handwritten": 1,
    "JME": 14,
    "JsonSchemaStore": 14,
    "Kubernetes": 12,
    "MCPspec": 12,
    "Snowplow": 15,
    "Synthesized": 5,
    "WashingtonPost": 12,
}
"""How many schemas of each set are enforced."""


@pytest.mark.parametrize("name", SETS)
def test_no_invalid_instance_can_be_written_and_refusals_have_a_place(name: str) -> None:
    num_enforced = 0
    for _, schema_name, schema, instances in (one for one in sample() if one[0] == name):
        reason, grammar = checked(schema)
        if grammar is None:
            assert PLACE.match(reason), reason
            continue
        matcher = new_matcher(tokens(), rendered(grammar))
        if matcher.is_error():
            continue
        num_enforced += 1
        for instance, is_valid in instances:
            is_taken = takes(matcher.deep_copy(), instance)
            assert is_valid or not is_taken or formats(schema) & UNENFORCED_FORMATS, (schema_name, instance)
    assert num_enforced == ENFORCED[name]
