"""A reader of calls whose parameters stand between tags: `<function=name><parameter=key>value</parameter></function>`.

The arguments' JSON is written a parameter at a time: a string, as the tool's schema says, while it comes, any other
value when it is whole. Values have no escapes: a closing tag only closes where another tag of the call follows it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from domain.output.answer import Answer
from domain.output.call_format import MAX_HEAD_CHARS, Run
from domain.output.reader import SPACE, NoCall, Reading, Stops
from domain.request.chat import Json, ToolSpec

_NAME_ATTRIBUTE = re.compile(r"""\b(?:name|tool|key)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""")
_ATTRIBUTES = re.compile(r"""\s*(?:[\w:-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'>=]+)\s*)+""")
_IS_STRING = re.compile(r"""\b(?:string\s*=\s*["']true["']|type\s*=\s*["']string["'])""")


@dataclass(frozen=True, slots=True)
class Tags:
    """`open`, a head up to `head_end` that names the parameter, `value_open` if that is set off, value, `close`."""

    open: str
    head_end: str
    close: str
    value_open: str = ""


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """`head_end`: after the call's name; "" where the next tag ends it. `around_value`: what may stand around a value,
    inside its tags, and is not part of it. `whole`: around all arguments as one JSON object, in place of parameters."""

    parameter: Tags
    open: str = ""
    head_end: str = ""
    close: str = ""
    around_value: tuple[str, str] = ("", "")
    whole: Tags | None = None

    def fits(self, start: str) -> bool:
        return not self.open and (start.isalnum() or start in "_-")

    def read(self, run: Run) -> Reading[None]:
        reader = run.reader
        followers = (self.parameter.open, self.close or run.close)
        reader.take(self.open)
        stops = (self.head_end,) if self.head_end else followers
        head, _ = yield from reader.up_to(Stops((*stops, *run.ends)), MAX_HEAD_CHARS)
        name = _named(run.answer.spelled(head))
        run.check_name(name)
        if self.head_end:
            yield from reader.expect(self.head_end)
        yield from reader.take_all(SPACE)
        follower = yield from reader.next_of(*followers, self.whole.open if self.whole else "")
        if not follower:
            raise NoCall
        run.begin(name)
        if self.whole is not None and follower == self.whole.open:
            yield from self._object(run, self.whole)
            return
        run.answer.arguments("{")
        separator = ""
        while follower == self.parameter.open:
            follower = yield from self._parameter(run, name, separator)
            separator = ", "
        run.answer.arguments("}")
        if follower == self.close:
            reader.take(follower)
        reader.mark()

    def _object(self, run: Run, tags: Tags) -> Reading[None]:
        """Pass the one JSON object on."""
        reader = run.reader
        reader.take(tags.open)
        yield from reader.up_to(Stops((tags.head_end, *run.ends)), MAX_HEAD_CHARS)
        yield from reader.expect(tags.head_end)
        reader.mark()
        yield from run.stream_json((tags.close,))
        for literal in (tags.close, self.close):
            yield from reader.expect(literal)
            reader.mark()

    def _parameter(self, run: Run, name: str, separator: str) -> Reading[str]:
        """Write the parameter's member, and return the tag that follows."""
        reader, tags = run.reader, self.parameter
        reader.take(tags.open)
        head, _ = yield from reader.up_to(Stops((tags.head_end, *run.ends)), MAX_HEAD_CHARS)
        yield from reader.expect(tags.head_end)
        if tags.value_open:
            yield from reader.expect(tags.value_open)
        key = _named(run.answer.spelled(head))
        reader.mark()
        run.answer.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        types = STRING if _IS_STRING.search(head) else types_of(run.tools.get(name), key)
        value = (StringValue if types == STRING else HeldValue)(run.answer, types, self.around_value)
        stops, followers = Stops((tags.close,)), (tags.open, self.close, run.close)
        while True:
            text, stop = yield from reader.some(stops)
            value.add(run.answer.spelled(text))
            reader.mark()
            if stop:
                close = reader.take(stop) + (yield from reader.take_all(SPACE))
                follower = yield from reader.next_of(*followers)
                if follower or not (yield from reader.peek()):
                    reader.mark()
                    value.end()
                    if not follower:
                        raise NoCall
                    return follower
                value.add(run.answer.spelled(close))
            elif stop is not None:
                value.cut()
                raise NoCall


def _named(head: str) -> str:
    """The name in a tag: that of its attributes which is called so, or all there is. NoCall for anything else."""
    found = _NAME_ATTRIBUTE.search(head)
    if found is not None and not _ATTRIBUTES.fullmatch(head):
        raise NoCall
    return (found[1] if found else head).strip().strip("\"'")


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
