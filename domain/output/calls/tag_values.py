"""Values that stand between tags, as JSON of the type that the tool's schema asks for."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from domain.output.answer import Answer
from domain.request.chat import Json, ToolSpec

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_TYPE_NAMES: Mapping[Any, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
_MAX_SCHEMA_DEPTH, _MAX_CHOICES = 2, 32
"""How far a parameter's schema is searched for its types, for every time a model writes the parameter."""

STRING = frozenset({"string"})


class StringValue:
    """A string: passed on as it comes. `around`: what may stand around it and is not part of it."""

    __slots__ = ("_after", "_answer", "_before", "_held")

    def __init__(self, answer: Answer, _types: frozenset[str], around: tuple[str, str]) -> None:
        self._answer = answer
        self._before, self._after = around
        self._held = ""
        answer.arguments('"')

    def add(self, text: str) -> None:
        self._held += text
        if self._before and len(self._held) < len(self._before) and self._before.startswith(self._held):
            return
        if self._before and not self._held.startswith(self._before) and not self._before.isspace():
            self._after = ""
        self._held = self._held.removeprefix(self._before)
        self._before = ""
        undecided = (k for k in range(len(self._after), 0, -1) if self._held.endswith(self._after[:k]))
        certain = len(self._held) - next(undecided, 0)
        self._answer.arguments(_escaped(self._held[:certain]))
        self._held = self._held[certain:]

    def end(self) -> None:
        self._answer.arguments(_escaped(self._held.removesuffix(self._after)) + '"')

    def cut(self) -> None:
        """The answer ends inside: what there is of the string, unclosed."""
        self._answer.arguments(_escaped(self._held))


class HeldValue:
    """Any other value: known for what it is when it is whole. `types`: what the schema allows; empty for anything."""

    __slots__ = ("_answer", "_around", "_parts", "_types")

    def __init__(self, answer: Answer, types: frozenset[str], around: tuple[str, str]) -> None:
        self._answer = answer
        self._around = around
        self._types = types
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        self._parts.append(text)

    def end(self) -> None:
        text, (before, after) = "".join(self._parts), self._around
        if before.isspace() or text.startswith(before):
            text = text.removeprefix(before).removesuffix(after)
        self._answer.arguments(_json_of(text, self._types))

    def cut(self) -> None:
        self.end()


def types_of(tool: ToolSpec | None, key: str) -> frozenset[str]:
    """The JSON types that a parameter may have; empty where the schema does not say."""
    properties = tool.parameters.get("properties") if tool else None
    return types_in(properties.get(key) if isinstance(properties, dict) else None)


def types_in(schema: Json) -> frozenset[str]:
    """The JSON types that a schema names; empty where it does not say."""
    return frozenset(_types(schema))


def _types(schema: Json, depth: int = 0) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_SCHEMA_DEPTH:
        return
    type_ = schema.get("type")
    if isinstance(type_, str):
        yield type_
    elif isinstance(type_, list):
        yield from (one for one in type_ if isinstance(one, str))
    elif isinstance(values := schema.get("enum"), list):
        yield from map(_type_of, values[:_MAX_CHOICES])
    for keyword in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(keyword)
        for choice in choices[:_MAX_CHOICES] if isinstance(choices, list) else ():
            yield from _types(choice, depth + 1)


def _json_of(text: str, types: frozenset[str]) -> str:
    """The text itself where it is JSON of a type that is allowed, otherwise as a string."""
    plain = _PYTHON_WORDS.get(text.strip(), text.strip())
    if types != STRING:
        try:
            value = cast("Json", json.loads(plain, parse_constant=_refuse_constant))
        except (ValueError, RecursionError):
            pass
        else:
            is_wanted = _type_of(value) in types or (_type_of(value) == "integer" and "number" in types)
            if is_wanted or not types or "string" not in types:
                return plain
    return json.dumps(text, ensure_ascii=False)


def _type_of(value: Json) -> str:
    return _TYPE_NAMES[type(value)]


def _refuse_constant(name: str) -> Json:
    raise ValueError(name)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
