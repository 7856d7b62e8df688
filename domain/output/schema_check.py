"""Whether a JSON value fits a schema, by the keywords that tools use. Sound, not complete.

What is said to be a misfit is one. Not looked at, and so never a misfit: references, patterns and formats (a client's
regular expression may take for ever), `not`, conditions and anything unknown.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from domain.chat import Json

_MAX_DEPTH = 32
_MAX_KEY_CHARS = 100


def first_misfit(value: Json, schema: object) -> str | None:
    """What does not fit, and where, in one sentence; None if nothing is known not to."""
    return next(_misfits(value, schema, "", 0), None)


def _misfits(value: Json, schema: object, at: str, depth: int) -> Iterator[str]:
    if schema is False:
        yield f"{at or 'the object'} is not allowed"
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return
    known = cast("Mapping[str, Any]", schema)
    if "$ref" in known or (value is None and known.get("nullable") is True):
        return
    for keyword, check in _CHECKS.items():
        if keyword in known and not check(value, known[keyword]):
            yield f"{at or 'the object'} {_WORDS[keyword].format(_short(known[keyword]))}"
    yield from _choices(value, known, at, depth)
    if isinstance(value, dict):
        yield from _members(value, known, at, depth)
    elif isinstance(value, list):
        items: object = None if "prefixItems" in known else known.get("items")
        for index, item in enumerate(value):
            yield from _misfits(item, items, f"{at}[{index}]", depth + 1)


def _choices(value: Json, schema: Mapping[str, Any], at: str, depth: int) -> Iterator[str]:
    for keyword in ("anyOf", "oneOf"):
        choices = schema.get(keyword)
        if isinstance(choices, Sequence) and all(
            next(_misfits(value, choice, at, depth + 1), None) is not None
            for choice in cast("Sequence[object]", choices)
        ):
            yield f"{at or 'the object'} fits none of the choices"
    every = schema.get("allOf")
    for choice in cast("Sequence[object]", every) if isinstance(every, Sequence) else ():
        yield from _misfits(value, choice, at, depth + 1)


def _members(value: dict[str, Json], schema: Mapping[str, Any], at: str, depth: int) -> Iterator[str]:
    required, properties = schema.get("required"), schema.get("properties")
    known = cast("Mapping[str, object]", properties) if isinstance(properties, Mapping) else {}
    for key in cast("list[object]", required) if isinstance(required, list) else ():
        if isinstance(key, str) and key not in value:
            yield f"{_path(at, key)} is missing"
    others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
    for key, item in value.items():
        yield from _misfits(item, known.get(key, others), _path(at, key), depth + 1)


def _path(at: str, key: str) -> str:
    return f"{at}.{key}"[:_MAX_KEY_CHARS] if at else key[:_MAX_KEY_CHARS]


def _is_type(value: Json, wanted: object) -> bool:
    if isinstance(wanted, list):
        return any(_is_type(value, one) for one in cast("list[object]", wanted))
    if isinstance(value, bool):
        return wanted in ("boolean", *_unknown(wanted))
    if isinstance(value, float) and wanted == "integer":
        return value.is_integer()
    types = {str: ("string",), int: ("integer", "number"), float: ("number",), list: ("array",), dict: ("object",)}
    return wanted in (*types.get(type(value), ("null",)), *_unknown(wanted))


def _unknown(wanted: object) -> tuple[object, ...]:
    """Types that are not JSON's, such as `any`, allow everything."""
    known = ("string", "integer", "number", "boolean", "array", "object", "null")
    return () if wanted in known else (wanted,)


def _equal(value: Json, wanted: object) -> bool:
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _number(compare: Callable[[float, float], bool]) -> Callable[[Json, object], bool]:
    def check(value: Json, limit: object) -> bool:
        return not _is_number(value) or not _is_number(limit) or compare(cast(float, value), cast(float, limit))

    return check


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _size(kind: type[str | list[Json]], is_max: bool) -> Callable[[Json, object], bool]:
    def check(value: Json, limit: object) -> bool:
        if not isinstance(value, kind) or not isinstance(limit, int):
            return True
        return len(value) <= limit if is_max else len(value) >= limit

    return check


_CHECKS: Mapping[str, Callable[[Json, Any], bool]] = {
    "type": _is_type,
    "enum": lambda value, wanted: not isinstance(wanted, list) or any(_equal(value, one) for one in wanted),
    "const": _equal,
    "minimum": _number(lambda value, limit: value >= limit),
    "maximum": _number(lambda value, limit: value <= limit),
    "exclusiveMinimum": _number(lambda value, limit: value > limit),
    "exclusiveMaximum": _number(lambda value, limit: value < limit),
    "minLength": _size(str, is_max=False),
    "maxLength": _size(str, is_max=True),
    "minItems": _size(list, is_max=False),
    "maxItems": _size(list, is_max=True),
}

_WORDS: Mapping[str, str] = {
    "type": "is not of type {}",
    "enum": "is none of {}",
    "const": "is not {}",
    "minimum": "is below {}",
    "maximum": "is above {}",
    "exclusiveMinimum": "is not above {}",
    "exclusiveMaximum": "is not below {}",
    "minLength": "is shorter than {} characters",
    "maxLength": "is longer than {} characters",
    "minItems": "has fewer than {} items",
    "maxItems": "has more than {} items",
}


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_KEY_CHARS else text[: _MAX_KEY_CHARS - 3] + "..."


__all__ = ("first_misfit",)
