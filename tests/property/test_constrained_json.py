"""Random schemas of the supported kind: every answer that ends is JSON that the schema accepts.

The toy model draws its tokens from what the grammar allows, a byte a token, so that it visits what a model would not.
"""

import json
import string
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from adapters.fake.engine import FakeEngine
from adapters.fake.options import EOS_ID
from adapters.fake.tokenizer import fake_vocabulary
from adapters.llguidance.compiler import LlguidanceCompiler
from application.ports.compute import DecodeStart, LoadedModel
from application.ports.token_constraint import TokenConstraint
from application.services.token_side.model_loads import whole
from domain.errors import ComputeFailed
from domain.grammar import json_schema_grammar
from domain.ids import ModelId, SequenceId
from domain.model_card import LoadOptions, ModelSource
from domain.sampling import SamplingParams

SOURCE = ModelSource(ModelId("toy"), "fake:toy")
ENDS = frozenset({EOS_ID})
MAX_TOKENS = 1_500
NAMES = st.text(string.ascii_letters + ' _-"\\é漢', min_size=1, max_size=5)
PATTERNS = ("^[a-z]{2,4}$", r"^\d{3}-\d{2}$", "ab|cd", r"^\w+@\w+\.com$", "^(a|b)*c$", r"^\S\s?\S$", '^"/\\\\$')
FORMATS = ("date", "date-time", "time", "uuid", "ipv4", "ipv6", "email", "hostname", "uri", "duration", "binary")


def bounds(low: str, high: str, largest: int) -> st.SearchStrategy[dict[str, Any]]:
    pairs = st.tuples(st.integers(0, largest), st.integers(0, largest)).map(sorted)
    return st.one_of(
        st.just({}),
        pairs.map(lambda pair: {low: pair[0], high: pair[1]}),
        st.integers(0, largest).map(lambda n: {high: n}),
    )


def with_type(name: str) -> Any:
    return lambda rest: {"type": name, **rest}


strings = st.one_of(
    bounds("minLength", "maxLength", 12).map(with_type("string")),
    st.sampled_from(PATTERNS).map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.sampled_from(FORMATS).map(lambda format: {"type": "string", "format": format}),
)
small = st.integers(-1_000, 1_000)
numbers = st.one_of(
    st.just({"type": "number"}),
    st.just({"type": "integer"}),
    st.tuples(small, small).map(lambda pair: {"type": "integer", "minimum": min(pair), "maximum": max(pair)}),
    small.map(lambda low: {"type": "integer", "exclusiveMinimum": low}),
    small.map(lambda high: {"type": "number", "exclusiveMaximum": high + 0.5}),
    st.tuples(small, st.integers(1, 99)).map(
        lambda pair: {"type": "number", "minimum": pair[0] / 8, "maximum": pair[0] / 8 + pair[1]}
    ),
    st.integers(1, 50).map(lambda step: {"type": "integer", "multipleOf": step}),
)
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-99, 99), st.sampled_from([0.5, -1.25, 100.0]), st.text(max_size=6)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)
scalars = st.one_of(
    strings,
    numbers,
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"], "maxLength": 3}]),
    values.map(lambda value: {"const": value}),
    st.lists(values, min_size=1, max_size=4).map(lambda some: {"enum": some}),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if properties:
        schema["required"] = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    others = draw(st.sampled_from(["silent", "none", "schema", "patterns"]))
    if others == "none":
        schema["additionalProperties"] = False
    elif others == "schema":
        schema["additionalProperties"] = draw(inner)
    elif others == "patterns":
        schema["patternProperties"] = {"^x-[a-z]+$": draw(inner)}
        schema["additionalProperties"] = False
    return schema


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": draw(inner), **draw(bounds("minItems", "maxItems", 4))}
    if draw(st.booleans()):
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=3))
    return schema


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        objects(inner),
        objects(inner),
        arrays(inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}),
        st.tuples(objects(inner), objects(inner)).map(lambda pair: {"allOf": list(pair)}),
        inner.map(lambda one: {"oneOf": [one, {"type": "null"}]}),
        inner.map(lambda one: {"$ref": "#/$defs/node", "description": "a tree"}),
    )


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    root = draw(st.recursive(scalars, combined, max_leaves=8))
    leaf = draw(scalars)
    node = {"type": "object", "properties": {"leaf": leaf, "next": {"$ref": "#/$defs/node"}}, "required": ["leaf"]}
    return {**root, "$defs": {"node": node}}


@pytest.fixture(scope="module")
def compiler() -> Iterator[LlguidanceCompiler]:
    with ThreadPoolExecutor(1) as workers:
        compiler = LlguidanceCompiler(workers, fake_vocabulary)
        compiler.attach(SOURCE)
        yield compiler


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return whole(FakeEngine().load(SOURCE, LoadOptions()))


def answer(model: LoadedModel, constraint: TokenConstraint, seed: int) -> str | None:
    """None if it did not end."""
    id, prompt, said = SequenceId(seed), (1, 2, 3), bytearray()
    bias = tuple((ord(end), 3.0) for end in '"}]')
    sampling = SamplingParams(temperature=1.2, logit_bias=bias)
    model.open(id)
    try:
        model.start_decode(
            id,
            prompt,
            DecodeStart(prompt, sampling, seed=seed, min_tokens=0, eos_token_ids=ENDS, constraint=constraint),
        )
        for _ in range(MAX_TOKENS):
            (result,) = model.decode([id])
            assert result.error is None, result.error
            if result.token_ids[0] == EOS_ID:
                return said.decode()
            said.append(result.token_ids[0])
    finally:
        model.close([id])
    return None


def parsed(text: str) -> Any:
    """JSON has numbers of any size; one that no double holds becomes the largest that one does."""
    return json.loads(text, parse_float=lambda number: min(max(float(number), -sys.float_info.max), sys.float_info.max))


def refusal(constraint: TokenConstraint) -> str:
    try:
        constraint.allowed()
    except ComputeFailed as error:
        return error.message
    return ""


REFUSALS = ("nsatisfiable", "oneOf", "not disjoint", "Unable to determine if regex is empty")
"""What the compiler may say of a schema of these kinds."""


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[*HealthCheck])
@given(schema=schemas(), seed=st.integers(0, 2**32))
def test_every_answer_that_ends_satisfies_its_schema(
    compiler: LlguidanceCompiler, model: LoadedModel, schema: dict[str, Any], seed: int
):
    constraint = compiler.compile(SOURCE.id, json_schema_grammar(schema, "schema"), ENDS)
    if reason := refusal(constraint):
        assert any(why in reason for why in REFUSALS), reason
    assume(not reason)
    text = answer(model, constraint, seed)
    event("cut" if text is None else "finished")
    if text is not None:
        found = jsonschema_rs.Draft202012Validator(schema)
        assert found.is_valid(parsed(text)), (text, list(found.iter_errors(parsed(text))))
