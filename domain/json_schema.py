"""Which JSON schemas (Draft 2020-12, and what older drafts share with it) an answer can be held to.

A keyword that cannot be enforced is refused by name and place; none is ignored that would make a wrong answer right.
What changes nothing is left out: neutral values, and formats nobody knows, which the drafts define as annotations.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, cast

from domain.chat import Json
from domain.errors import InvalidRequest
from domain.shown import shown

MAX_DEPTH = 48
"""Of nested JSON values in a schema; a `$ref` is not followed and adds nothing."""

MAX_VALUES = 20_000
"""JSON values in a schema, keys not counted."""

UNSUPPORTED = frozenset(
    {
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveAnchor",
        "$recursiveRef",
        "$vocabulary",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
        "x-guidance",  # would set the enforcing library's own options
    }
)

FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"})
"""The string formats that are enforced."""

_NEUTRAL: Mapping[str, object] = {"uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}

_ONE, _LIST, _MAP = (
    frozenset({"additionalItems", "additionalProperties", "items"}),
    frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"}),
    frozenset({"$defs", "definitions", "patternProperties", "properties"}),
)
"""Keywords that hold a schema, a list of schemas, or schemas by name."""


def checked_schema(schema: object, param: str) -> dict[str, Json]:
    """The schema as it can be enforced. Raises InvalidRequest for `param`, naming keyword and place."""
    _check_size(schema, param)
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{param} must be a JSON schema: an object or a boolean", param=param)
    found = _checked(cast("dict[str, Json] | bool", schema), "#", param)
    if isinstance(found, bool):
        if not found:
            raise InvalidRequest(f"{param} is false: nothing satisfies it", param=param)
        return {}
    for path, reference in _references(found, "#"):
        if not _resolves(found, reference):
            _refuse("$ref", path, f"points to {shown(str(reference))!r}, which is not in the schema", param)
    return found


def _check_size(schema: object, param: str) -> None:
    """Without recursion: nothing is known of the depth yet."""
    num_values, waiting = 0, [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        num_values += 1
        if depth > MAX_DEPTH or num_values > MAX_VALUES:
            what = f"nested deeper than {MAX_DEPTH}" if depth > MAX_DEPTH else f"larger than {MAX_VALUES} values"
            raise InvalidRequest(f"{param} is {what}", param=param)
        if isinstance(value, dict):
            waiting += [(one, depth + 1) for one in cast("dict[str, object]", value).values()]
        elif isinstance(value, list):
            waiting += [(one, depth + 1) for one in cast("list[object]", value)]


def _checked(schema: Json, path: str, param: str) -> "dict[str, Json] | bool":
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{param} has no schema at {shown(path)}: it must be an object or a boolean", param=param)
    found: dict[str, Json] = {}
    for keyword, value in schema.items():
        if keyword in _NEUTRAL and value is _NEUTRAL[keyword]:
            continue
        if keyword in UNSUPPORTED:
            _refuse(keyword, path, "is not supported", param)
        if keyword == "format" and value not in FORMATS:
            continue
        found[keyword] = _checked_value(keyword, value, f"{path}/{keyword}", param)
    _check_min_properties(found, path, param)
    return found


def _checked_value(keyword: str, value: Json, path: str, param: str) -> Json:
    if keyword in _MAP:
        if not isinstance(value, dict):
            raise InvalidRequest(f"{param} must have an object at {shown(path)}", param=param)
        return {name: _checked(one, f"{path}/{name}", param) for name, one in value.items()}
    if keyword in _LIST and isinstance(value, list):
        return [_checked(one, f"{path}/{index}", param) for index, one in enumerate(value)]
    if keyword in _ONE:
        return _checked(value, path, param)
    return value


def _check_min_properties(schema: Mapping[str, Json], path: str, param: str) -> None:
    """Names that are not listed may repeat, so that no more than one of them is known to count."""
    least, required = schema.get("minProperties"), schema.get("required")
    num_sure = len(required) if isinstance(required, list) else 0
    if isinstance(least, int) and least > num_sure + 1:
        _refuse("minProperties", path, "is supported up to one more than there are required properties", param)


def _references(schema: Json, path: str) -> Iterator[tuple[str, Json]]:
    """Every `$ref` of the schema, with the place of the schema that holds it."""
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        yield path, schema["$ref"]
    for keyword, value in schema.items():
        if keyword in _MAP and isinstance(value, dict):
            inner = list(value.items())
        elif keyword in _LIST and isinstance(value, list):
            inner = [(str(index), one) for index, one in enumerate(value)]
        elif keyword in _ONE:
            inner = [("", value)]
        else:
            continue
        for name, one in inner:
            yield from _references(one, f"{path}/{keyword}/{name}" if name else f"{path}/{keyword}")


def _resolves(root: Mapping[str, Json], reference: Json) -> bool:
    """Whether it points into this schema: `#`, `#/$defs/name`, or `#anchor`."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return False
    if reference[1:2] not in ("", "/"):
        return any(schema.get("$anchor") == reference[1:] for schema in _objects(dict(root)))
    value: Any = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and name.isdecimal() and int(name) < len(cast("list[object]", value)):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            return False
    return isinstance(value, dict | bool)


def _objects(value: Json) -> Iterator[dict[str, Json]]:
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _objects(one)


def _refuse(keyword: str, path: str, why: str, param: str) -> NoReturn:
    raise InvalidRequest(f"{param}: the keyword {keyword} at {shown(path)} {why}", param=param)


__all__ = ("FORMATS", "MAX_DEPTH", "UNSUPPORTED", "checked_schema")
