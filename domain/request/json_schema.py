"""The JSON schemas (Draft 2020-12, and its common part with older drafts) that can constrain an answer.

A keyword that cannot be enforced is refused by name and place; none is ignored that would make a wrong answer valid.
Keywords without effect are left out: neutral values, and unknown formats, which the drafts define as annotations.

An object that lists its properties and does not mention others allows no others: every answer still fits the schema,
and a model that may invent properties tends to keep inventing them. Exempt are objects that several schemas constrain,
of which closing one would exclude properties of another, or that must fit one of several only.
"""

from collections.abc import Iterator, Mapping
from typing import NoReturn, cast
from urllib.parse import unquote

from domain.errors import InvalidRequest
from domain.printable import printable
from domain.request.chat import Json

_DAY = "(0[1-9]|1[0-9]|2[0-8])"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_MONTHS = f"((0[13578]|1[02])-({_DAY}|29|30|31)|(0[469]|11)-({_DAY}|29|30)|02-{_DAY})"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"

DATE = f"([0-9]{{4}}-{_MONTHS}|{_LEAP_YEAR}-02-29)"
TIME = f"{_CLOCK}([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
DATE_TIME = f"{DATE}[Tt]{TIME}"
"""Formats of strings as regular expressions, exact but for leap seconds, which are excluded."""


MAX_DEPTH = 48
"""The most levels of nested JSON values in a schema; a `$ref` is not followed and adds none."""

MAX_VALUES = 10_000
"""The most JSON values in a schema, keys not counted."""

ANNOTATIONS = frozenset(
    [
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "externalDocs",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    ]
)
"""Keywords without effect on validity."""

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

_EXACT: Mapping[str, Json] = {"date": f"^{DATE}$", "date-time": f"^{DATE_TIME}$", "time": f"^{TIME}$"}
"""Formats that a pattern states more exactly than llguidance does: days that a month lacks, and seconds."""

_INDICES = frozenset(str(number) for number in range(MAX_VALUES))

_NEUTRAL: Mapping[str, object] = {"uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}

_ONE, _LIST, _MAP = (
    frozenset({"additionalItems", "additionalProperties", "items"}),
    frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"}),
    frozenset({"$defs", "definitions", "patternProperties", "properties"}),
)
"""Keywords that hold a schema, a list of schemas, or schemas by name."""

_OBJECT = frozenset({"additionalProperties", "minProperties", "patternProperties", "properties", "required"})


def checked_schema(schema: object, param: str) -> dict[str, Json]:
    """Returns the schema as it can be enforced. Raises InvalidRequest for `param`, naming keyword and place."""
    _check_size(schema, param)
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{param} must be a JSON schema: an object or a boolean", param=param)
    found = _checked(cast("dict[str, Json] | bool", schema), "#", param)
    if isinstance(found, bool):
        if not found:
            raise InvalidRequest(
                f"{param} is false, which no answer satisfies; use a schema that allows some value", param=param
            )
        return {}
    schemas = list(_schemas(found, "#"))
    anchors = frozenset(name for _, schema in schemas if isinstance(name := schema.get("$anchor"), str))
    for path, schema in schemas:
        if "$ref" in schema and not _resolves(found, anchors, reference := schema["$ref"]):
            _refuse("$ref", path, f"points to {printable(str(reference))!r}, which is not in the schema", param)
    if not any(_has_several(schema) for _, schema in schemas):
        for _, schema in schemas:
            _close(schema)
    return found


def _check_size(schema: object, param: str) -> None:
    """Checks depth and number of values, without recursion because the depth is not known yet."""
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
        raise InvalidRequest(
            f"{param} has no schema at {printable(path)}: it must be an object or a boolean", param=param
        )
    found: dict[str, Json] = {}
    for keyword, value in schema.items():
        if keyword in _NEUTRAL and value is _NEUTRAL[keyword]:
            continue
        if keyword in UNSUPPORTED:
            _refuse(keyword, path, "is not supported", param)
        if keyword == "format" and not (isinstance(value, str) and value in FORMATS):
            continue
        found[keyword] = _checked_value(keyword, value, _below(path, keyword), param)
    _check_min_properties(found, path, param)
    if (exact := _EXACT.get(str(found.get("format")))) is not None and "pattern" not in found:
        found["pattern"] = exact
        del found["format"]
    return found


def _checked_value(keyword: str, value: Json, path: str, param: str) -> Json:
    if keyword in _MAP:
        if not isinstance(value, dict):
            raise InvalidRequest(f"{param} must have an object at {printable(path)}", param=param)
        return {name: _checked(one, _below(path, name), param) for name, one in value.items()}
    if keyword in _LIST and isinstance(value, list):
        return [_checked(one, f"{path}/{index}", param) for index, one in enumerate(value)]
    if keyword in _ONE:
        return _checked(value, path, param)
    return value


def _check_min_properties(schema: Mapping[str, Json], path: str, param: str) -> None:
    """Unlisted names may repeat, so only one of them is certain to count."""
    least, required = schema.get("minProperties"), schema.get("required")
    num_sure = len(required) if isinstance(required, list) else 0
    if isinstance(least, int) and least > num_sure + 1:
        _refuse("minProperties", path, "is supported up to one more than there are required properties", param)


def _has_several(schema: Mapping[str, Json]) -> bool:
    """Returns True if other schemas constrain the object too, or it must not fit another one."""
    combining = schema.keys() & {"$ref", "allOf", "anyOf", "oneOf"}
    return bool(combining & {"allOf", "oneOf"} or len(combining) > 1 or (combining and schema.keys() & _OBJECT))


def _close(schema: dict[str, Json]) -> None:
    names, required = schema.get("properties"), schema.get("required", [])
    if not names or not isinstance(names, dict) or not isinstance(required, list):
        return
    says_nothing_of_others = not schema.keys() & {"additionalProperties", "patternProperties", "minProperties"}
    if says_nothing_of_others and all(name in names for name in required):
        schema["additionalProperties"] = False


def _schemas(schema: Json, path: str) -> Iterator[tuple[str, dict[str, Json]]]:
    """Yields every schema that is an object, with its place."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword, value in schema.items():
        if keyword in _MAP and isinstance(value, dict):
            inner = list(value.items())
        elif keyword in _LIST and isinstance(value, list):
            inner = [(str(index), one) for index, one in enumerate(value)]
        elif keyword in _ONE:
            yield from _schemas(value, f"{path}/{keyword}")
            continue
        else:
            continue
        for name, one in inner:
            yield from _schemas(one, _below(f"{path}/{keyword}", name))


def _resolves(root: dict[str, Json], anchors: frozenset[str], reference: Json) -> bool:
    """Returns True if the reference points into this schema: `#`, `#/$defs/name`, or `#anchor`."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return False
    if reference[1:2] not in ("", "/"):
        return reference[1:] in anchors
    value: Json = root
    for part in reference[1:].split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name in _INDICES and int(name) < len(value):
            value = value[int(name)]
        else:
            return False
    return isinstance(value, dict | bool)


def _below(path: str, name: str) -> str:
    """Returns a place below another. Names are a client's: a long one is cut, or each place below would repeat it."""
    return f"{path}/{printable(name, 64)}"


def _refuse(keyword: str, path: str, why: str, param: str) -> NoReturn:
    raise InvalidRequest(f"{param}: the keyword {keyword} at {printable(path)} {why}", param=param)
