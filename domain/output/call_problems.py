"""Faults of the tool calls of an answer, reported beside the calls, never instead of them.

Arguments are checked against their tool's schema by the keywords that tools use. The check is sound, not complete:
every reported misfit is one. References, patterns and formats (a client's regular expression may take for ever), `not`,
conditions, unknown keywords, and what is left after many steps are not checked.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from domain.request.chat import Json, ToolCall, ToolSpec
from domain.request.stream import CallProblem, ContentDelta, ProblemKind, ToolCallDelta

_MAX_DEPTH, _MAX_STEPS = 32, 20_000
_MAX_SHOWN_CHARS = 100
_Schema: TypeAlias = Mapping[str, Any]


def first_misfit(value: Json, schema: object) -> str | None:
    """What does not fit, and where, in one sentence; None if nothing is known not to."""
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

    def _fits(self, value: Json, wanted: Any, check: Callable[[Json, Any], bool]) -> bool:
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


_TYPES: Mapping[object, Callable[[Json], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and float(cast(float, value)).is_integer(),
    "number": lambda value: _is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def _is_type(value: Json, wanted: object) -> bool:
    """Types that are not JSON's, such as `any`, allow everything."""
    names = _list(wanted) or [wanted]
    return any(not isinstance(name, str) or name not in _TYPES or _TYPES[name](value) for name in names)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(value: Json, wanted: object) -> bool:
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _is_listed(value: Json, wanted: object) -> bool:
    return not isinstance(wanted, list) or any(_equal(value, one) for one in cast("list[object]", wanted))


def _number(compare: Callable[[float, float], bool]) -> Callable[[Json, object], bool]:
    def check(value: Json, limit: object) -> bool:
        return not _is_number(value) or not _is_number(limit) or compare(cast(float, value), cast(float, limit))

    return check


def _size(kind: type, compare: Callable[[float, float], bool]) -> Callable[[Json, object], bool]:
    def check(value: Json, limit: object) -> bool:
        return not isinstance(value, kind) or not isinstance(limit, int) or compare(len(cast(str, value)), limit)

    return check


_CHECKS: Mapping[str, tuple[Callable[[Json, Any], bool], str]] = {
    "type": (_is_type, "is not of type {}"),
    "enum": (_is_listed, "is none of {}"),
    "const": (_equal, "is not {}"),
    "minimum": (_number(lambda value, limit: value >= limit), "is below {}"),
    "maximum": (_number(lambda value, limit: value <= limit), "is above {}"),
    "exclusiveMinimum": (_number(lambda value, limit: value > limit), "is not above {}"),
    "exclusiveMaximum": (_number(lambda value, limit: value < limit), "is not below {}"),
    "minLength": (_size(str, lambda size, limit: size >= limit), "is shorter than {} characters"),
    "maxLength": (_size(str, lambda size, limit: size <= limit), "is longer than {} characters"),
    "minItems": (_size(list, lambda size, limit: size >= limit), "has fewer than {} items"),
    "maxItems": (_size(list, lambda size, limit: size <= limit), "has more than {} items"),
}


def joined_calls(deltas: Iterable[ContentDelta]) -> tuple[ToolCall, ...]:
    """The calls that an answer's deltas tell, whole."""
    found: dict[int, tuple[str, str, list[str]]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            _, _, arguments = found.setdefault(delta.index, (delta.id, delta.name, []))
            arguments.append(delta.arguments)
    return tuple(ToolCall(id, name, "".join(arguments)) for id, name, arguments in found.values())


def call_problems(calls: Iterable[ToolCall], tools: Sequence[ToolSpec]) -> tuple[CallProblem, ...]:
    """One for each call that has one: the gravest."""
    by_name = {tool.name: tool for tool in tools}
    problems = ((call, _problem(call, by_name.get(call.name))) for call in calls)
    return tuple(CallProblem(call.id, *problem) for call, problem in problems if problem is not None)


def _problem(call: ToolCall, tool: ToolSpec | None) -> tuple[ProblemKind, str] | None:
    if tool is None:
        return ProblemKind.UNKNOWN_TOOL, f"no tool {call.name!r} was given"
    try:
        arguments: Json = json.loads(call.arguments, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number is none, or all is too deep"
        return ProblemKind.MALFORMED_ARGUMENTS, f"the arguments for {call.name} are not JSON: {reason}"
    if not isinstance(arguments, dict):
        return ProblemKind.MALFORMED_ARGUMENTS, f"the arguments for {call.name} are not a JSON object"
    misfit = first_misfit(arguments, tool.parameters)
    return None if misfit is None else (ProblemKind.SCHEMA_MISMATCH, f"the arguments for {call.name}: {misfit}")


def _refuse(constant: str) -> Json:
    raise ValueError(constant)
