"""JSON schemas of the kinds that an answer can be held to, drawn at random."""

import string
from typing import Any

from hypothesis import strategies as st

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


KINDS = ("a", "b", "ab", 1, 2, True, None)
kinds = st.one_of(
    st.sampled_from(KINDS).map(lambda value: {"const": value}),
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=3).map(lambda some: {"enum": some}),
    st.sampled_from(["string", "number", "integer", "boolean", "null"]).map(lambda name: {"type": name}),
    st.integers(0, 2).map(lambda size: {"type": "string", "minLength": size}),
    st.integers(-2, 2).map(lambda low: {"type": "number", "minimum": low}),
)
keys = st.sampled_from(["k", "m", "n"])
members = st.one_of(
    st.dictionaries(keys, kinds, min_size=1, max_size=2).map(lambda some: {"properties": some}),
    st.lists(keys, min_size=1, max_size=2, unique=True).map(lambda some: {"required": some}),
    st.tuples(keys, kinds).map(lambda pair: {"properties": {pair[0]: pair[1]}, "required": [pair[0]]}),
)
conditions = st.recursive(
    st.one_of(members, kinds),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda some: {"oneOf": some}),
        inner.map(lambda one: {"not": one}),
        st.tuples(inner, inner, inner).map(lambda some: {"if": some[0], "then": some[1], "else": some[2]}),
        st.dictionaries(keys, st.lists(keys, max_size=2, unique=True)).map(lambda some: {"dependentRequired": some}),
        st.tuples(keys, inner).map(lambda pair: {"dependentSchemas": {pair[0]: pair[1]}}),
        st.sampled_from([{"pattern": "^[km]$"}, {"enum": ["k", "n"]}, {"maxLength": 1}]).map(
            lambda names: {"propertyNames": names}
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda some: {"allOf": some}),
        st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some}),
        st.tuples(members, inner).map(lambda pair: {**pair[1], **pair[0]}),
    ),
    max_leaves=5,
)
"""Schemas that speak of other schemas: what they say is said by other keywords, or they are refused."""


@st.composite
def conditional_schemas(draw: st.DrawFn) -> dict[str, Any]:
    root = draw(conditions)
    known = {key: {"enum": [*KINDS]} for key in draw(st.lists(keys, unique=True))}
    return {
        "type": "object",
        "properties": known,
        "allOf": [root, draw(st.sampled_from([{}, {"$ref": "#/$defs/c"}]))],
        "$defs": {"c": draw(conditions)},
    }
