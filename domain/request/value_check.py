"""Checks of JSON values against schemas, by the keywords that tools use.

The check is sound, not complete: every reported misfit is one. References, patterns and formats (a client's regular
expression may not terminate), `not`, conditions, unknown keywords, and what is left after many steps are not checked.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, cast

from domain.request.chat import Json

STRING = frozenset({"string"})

_MAX_DEPTH, _MAX_STEPS = 32, 20_000
_MAX_TYPE_DEPTH, _MAX_TYPE_CHOICES = 2, 32
"""The limits of searching a parameter's schema for its types, which happens each time a model writes the parameter."""

_MAX_SHOWN_CHARS = 100
_Schema: TypeAlias = Mapping[str, Any]
_Check: TypeAlias = Callable[[Json, Any], bool]


def type_of(value: Json) -> str:
    """Returns the name of a value's JSON type."""
    return next(name for name, is_of in _TYPES.items() if is_of(value))


def types_in(schema: Json) -> frozenset[str]:
    """Returns the JSON types that a schema names; empty where it names none."""
    return frozenset(_types_in(schema, 0))


def _types_in(schema: Json, depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_TYPE_DEPTH:
        return
    type_ = schema.get("type")
    if isinstance(type_, str):
        yield type_
    elif isinstance(type_, list):
        yield from (one for one in type_ if isinstance(one, str))
    elif isinstance(values := schema.get("enum"), list):
        yield from map(type_of, values[:_MAX_TYPE_CHOICES])
    for keyword in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(keyword)
        for choice in choices[:_MAX_TYPE_CHOICES] if isinstance(choices, list) else ():
            yield from _types_in(choice, depth + 1)


def first_misfit(value: Json, schema: object) -> str | None:
    """Returns one sentence that says where the value does not fit; None if no misfit is found."""
    return next(_SchemaCheck().misfits(value, schema, "", 0), None)


class _SchemaCheck:
    __slots__ = ("_num_steps",)

    def __init__(self) -> None:
        self._num_steps = 0

    def misfits(self, value: Json, schema: object, at: str, depth: int) -> Iterator[str]:
        self._num_steps += 1
        if schema is False:
            yield f"{at or 'the object'} is not allowed"
        known = _object(schema)
        if not known or depth > _MAX_DEPTH or self._num_steps > _MAX_STEPS:
            return
        if "$ref" in known or (value is None and known.get("nullable") is True):
            return
        for keyword, (check, words) in _CHECKS.items():
            if keyword in known and not self._fits(value, known[keyword], check):
                yield f"{at or 'the object'} {words.format(_short(known[keyword]))}"
        yield from self._choices(value, known, at, depth)
        if isinstance(value, dict):
            yield from self._members(value, known, at, depth)
        elif isinstance(value, list) and "items" in known and "prefixItems" not in known:
            for index, item in enumerate(value):
                yield from self.misfits(item, known["items"], f"{at}[{index}]", depth + 1)

    def _fits(self, value: Json, wanted: Any, check: _Check) -> bool:
        self._num_steps += len(_list(wanted))
        return self._num_steps > _MAX_STEPS or check(value, wanted)

    def _choices(self, value: Json, schema: _Schema, at: str, depth: int) -> Iterator[str]:
        for keyword in ("anyOf", "oneOf"):
            choices = _list(schema.get(keyword))
            if choices and all(next(self.misfits(value, one, at, depth + 1), None) for one in choices):
                yield f"{at or 'the object'} fits none of the choices"
        for one in _list(schema.get("allOf")):
            yield from self.misfits(value, one, at, depth + 1)

    def _members(self, value: dict[str, Json], schema: _Schema, at: str, depth: int) -> Iterator[str]:
        for key in _list(schema.get("required")):
            if isinstance(key, str) and key not in value:
                yield f"{_path(at, key)} is missing"
        known = _object(schema.get("properties"))
        others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        for key, item in value.items():
            yield from self.misfits(item, known.get(key, others), _path(at, key), depth + 1)


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _object(value: object) -> _Schema:
    return cast(_Schema, value) if isinstance(value, Mapping) else {}


def _path(at: str, key: str) -> str:
    return f"{at}.{key}"[:_MAX_SHOWN_CHARS] if at else key[:_MAX_SHOWN_CHARS]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Mapping[str, Callable[[Json], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: value.is_integer() if isinstance(value, float) else _is_number(value),
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def _is_type(value: Json, wanted: object) -> bool:
    """Types that are not JSON's, such as `any`, allow everything."""
    names = _list(wanted) or [wanted]
    return any(not isinstance(name, str) or name not in _TYPES or _TYPES[name](value) for name in names)


def _equal(value: Json, wanted: object) -> bool:
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _is_listed(value: Json, wanted: object) -> bool:
    return not isinstance(wanted, list) or any(_equal(value, one) for one in cast("list[object]", wanted))


def _number(compare: Callable[[Any, Any], bool]) -> _Check:
    return lambda value, limit: not _is_number(value) or not _is_number(limit) or compare(value, limit)


def _size(kind: type, compare: Callable[[Any, Any], bool]) -> _Check:
    return lambda value, limit: (
        not isinstance(value, kind) or not isinstance(limit, int) or compare(len(cast(str, value)), limit)
    )


_CHECKS: Mapping[str, tuple[_Check, str]] = {
    "type": (_is_type, "is not of type {}"),
    "enum": (_is_listed, "is none of {}"),
    "const": (_equal, "is not {}"),
    "minimum": (_number(operator.ge), "is below {}"),
    "maximum": (_number(operator.le), "is above {}"),
    "exclusiveMinimum": (_number(operator.gt), "is not above {}"),
    "exclusiveMaximum": (_number(operator.lt), "is not below {}"),
    "minLength": (_size(str, operator.ge), "is shorter than {} characters"),
    "maxLength": (_size(str, operator.le), "is longer than {} characters"),
    "minItems": (_size(list, operator.ge), "has fewer than {} items"),
    "maxItems": (_size(list, operator.le), "has more than {} items"),
}
