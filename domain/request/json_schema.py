"""The JSON schemas (Draft 2020-12, and its common part with older drafts) that can constrain an answer.

A keyword that cannot be enforced is refused by name and place; none is ignored that would make a wrong answer valid.
Keywords without effect are left out: neutral values, and unknown formats, which the drafts define as annotations.

An object that lists its properties and does not mention others allows no others: every answer still fits the schema,
and a model that may invent properties tends to keep inventing them. Exempt are objects that several schemas constrain,
of which closing one would exclude properties of another, or that must fit one of several only.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn, cast

from domain.errors import InvalidRequest
from domain.printable import printable
from domain.request.chat import Json
from domain.request.schema_proofs import SchemaProofs, passed, resolved
from domain.request.schema_rewriting import REWRITTEN, Refusal, rewritten

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

UNSUPPORTED = frozenset(
    {
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveAnchor",
        "$recursiveRef",
        "$vocabulary",
        "contains",
        "maxContains",
        "minContains",
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

_NEUTRAL: Mapping[str, object] = {"uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}

_SAME = frozenset({"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"})
"""Keywords whose schemas are about the value itself, not about what is in it."""

_ONE, _LIST, _MAP = (
    frozenset({"additionalItems", "additionalProperties", "else", "if", "items", "not", "propertyNames", "then"}),
    frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"}),
    frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}),
)
"""Keywords that hold a schema, a list of schemas, or schemas by name."""

_DEFINITIONS = frozenset({"$defs", "definitions"})

_OBJECT = frozenset({"additionalProperties", "minProperties", "patternProperties", "properties", "required"})


def checked_schema(schema: object, param: str) -> dict[str, Json]:
    """Returns the schema as it can be enforced. Raises InvalidRequest for `param`, naming keyword and place."""
    _check_size(schema, param, param, MAX_DEPTH)
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{param} must be a JSON schema: an object or a boolean", param=param)
    root = cast("dict[str, Json] | bool", schema)
    every = list(_schemas(root, "#"))
    anchors: dict[str, Json] = {name: one for _, one in every if isinstance(name := one.get("$anchor"), str)}
    references = [(path, one["$ref"]) for path, one in every if "$ref" in one]
    found = _Check(param, root, anchors, references, has_bases=_has_bases(every)).schema(root, "#", [])
    if isinstance(found, bool):
        if not found:
            raise InvalidRequest(
                f"{param} is false, which no answer satisfies; use a schema that allows some value", param=param
            )
        return {}
    _check_size(found, f"{param}, once its oneOf, not, if and dependencies are written out,", param, 2 * MAX_DEPTH)
    schemas = [one for _, one in _schemas(found, "#")]
    for reference in (one["$ref"] for one in schemas if "$ref" in one):
        if resolved(found, anchors, reference) is None:
            path = next(path for path, one in references if one == reference)
            _refuse("$ref", path, f"points to {printable(str(reference))!r}, which is rewritten; use $defs", param)
    if not any(map(_has_several, schemas)):
        for one in schemas:
            _close(one)
    return found


def _check_size(schema: object, name: str, param: str, max_depth: int) -> None:
    """Checks depth and number of values, without recursion because the depth is not known yet."""
    num_values, waiting = 0, [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        num_values += 1
        if depth > max_depth or num_values > MAX_VALUES:
            what = f"nested deeper than {max_depth}" if depth > max_depth else f"larger than {MAX_VALUES} values"
            raise InvalidRequest(f"{name} is {what}", param=param)
        if isinstance(value, dict):
            waiting += [(one, depth + 1) for one in cast("dict[str, object]", value).values()]
        elif isinstance(value, list):
            waiting += [(one, depth + 1) for one in cast("list[object]", value)]


class _Check:
    """The check of one document. Raises InvalidRequest for references to nowhere.

    The schemas around one count only where no reference uses it in another place."""

    def __init__(
        self,
        param: str,
        root: Json,
        anchors: Mapping[str, Json],
        references: Sequence[tuple[str, Json]],
        *,
        has_bases: bool,
    ) -> None:
        self._param = param
        self._proofs = SchemaProofs(None if has_bases else root, {} if has_bases else anchors)
        self._keeps_definitions = has_bases or bool(anchors)
        self._sees_around = not anchors
        self._passed = set[int]()
        for path, reference in references:
            values = passed(root, anchors, reference)
            if not values:
                where = f"points to {printable(str(reference))!r}, which is not in the schema"
                _refuse("$ref", path, where, param)
            self._passed.update(map(id, values))
            self._sees_around &= _SAME.isdisjoint(str(reference).split("/"))

    def schema(self, schema: Json, path: str, within: Sequence[Json]) -> dict[str, Json] | bool:
        """Returns a schema as it can be enforced. `within`: schemas that its values satisfy too."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise InvalidRequest(
                f"{self._param} has no schema at {printable(path)}: it must be an object or a boolean",
                param=self._param,
            )
        around: Sequence[Json] = [*within, {**schema}] if self._sees_around else []
        found: dict[str, Json] = {}
        for keyword, value in schema.items():
            if keyword in _NEUTRAL and value is _NEUTRAL[keyword]:
                continue
            if keyword in UNSUPPORTED:
                _refuse(keyword, path, "is not supported", self._param)
            if keyword == "format" and not (isinstance(value, str) and value in FORMATS):
                continue
            place = _below(path, keyword)
            found[keyword] = self._value(keyword, value, place, around if keyword in _SAME else [])
        _check_min_properties(found, path, self._param)
        if (exact := _EXACT.get(str(found.get("format")))) is not None and "pattern" not in found:
            found["pattern"] = exact
            del found["format"]
        if found.keys() & REWRITTEN:
            written = rewritten(found, within, self._proofs)
            if isinstance(written, Refusal):
                _refuse(written.keyword, path, written.why, self._param)
            return written
        return found

    def _value(self, keyword: str, value: Json, path: str, within: Sequence[Json]) -> Json:
        if keyword in _MAP:
            if not isinstance(value, dict):
                raise InvalidRequest(f"{self._param} must have an object at {printable(path)}", param=self._param)
            lists = keyword == "dependencies"
            return {
                name: one if lists and isinstance(one, list) else self.schema(one, _below(path, name), within)
                for name, one in value.items()
                if keyword not in _DEFINITIONS or self._is_used(one)
            }
        if keyword in _LIST and isinstance(value, list):
            return [self.schema(one, f"{path}/{index}", within) for index, one in enumerate(value)]
        return self.schema(value, path, within) if keyword in _ONE else value

    def _is_used(self, definition: Json) -> bool:
        return self._keeps_definitions or not isinstance(definition, dict) or id(definition) in self._passed


def _has_bases(schemas: Iterable[tuple[str, Mapping[str, Json]]]) -> bool:
    """Returns True if a schema inside may change what references are relative to."""
    return any(path != "#" and one.keys() & {"$id", "id"} for path, one in schemas)


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


def _below(path: str, name: str) -> str:
    """Returns a place below another. Names are a client's: a long one is cut, or each place below would repeat it."""
    return f"{path}/{printable(name, 64)}"


def _refuse(keyword: str, path: str, why: str, param: str) -> NoReturn:
    raise InvalidRequest(f"{param}: the keyword {keyword} at {printable(path)} {why}", param=param)
