"""A reader of calls whose parameters stand between tags: `<function=name><parameter=key>value</parameter></function>`.

The arguments' JSON is written a parameter at a time: a string, as the tool's schema says, while it comes, any other
value when it is whole. Values have no escapes: a closing tag only closes where another tag of the call follows it.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from domain.output.call_format import MAX_HEAD_CHARS, Run
from domain.output.literal_calls import escaped
from domain.output.reader import SPACE, NoCall, Reading, Stops
from domain.request.chat import Json, ToolSpec
from domain.request.value_check import STRING, type_of, types_in

_NAME_ATTRIBUTE = re.compile(r"""\b(?:name|tool|key)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""")
_ATTRIBUTES = re.compile(r"""\s*(?:[\w:-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'>=]+)\s*)+""")
_IS_STRING = re.compile(r"""\b(?:string\s*=\s*["']true["']|type\s*=\s*["']string["'])""")
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, slots=True)
class Tags:
    """`open`, a head up to `head_end` that names the parameter, `value_open` if that is set off, value, `close`."""

    open: str
    head_end: str
    close: str
    value_open: str = ""


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """`head_end`: after the call's name; "" where the next tag ends it. `around_value`: text that may stand around a
    value, inside its tags, and is not part of it. `whole`: around all arguments as one JSON object, in place of
    parameters."""

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
        run.write(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        types = STRING if _IS_STRING.search(head) else _types_of(run.tools.get(name), key)
        if types == STRING:
            run.write('"')
            follower = yield from self._value(run, lambda text: run.write(escaped(text)))
            run.answer.arguments('"' if follower is not None else "")
        else:
            parts: list[str] = []
            follower = yield from self._value(run, parts.append)
            run.answer.arguments(_json_of("".join(parts), types))
        reader.mark()
        if not follower:
            raise NoCall
        return follower

    def _value(self, run: Run, add: Callable[[str], None]) -> Reading[str | None]:
        """Pass the value's text to `add`, without the text around it, and return the tag that follows: "" where none
        does, None where the answer ends inside the value."""
        reader, close, (before, after) = run.reader, self.parameter.close, self.around_value
        if (yield from reader.next_of(before)):
            reader.take(before)
        elif not before.isspace():
            after = ""
        stops, followers = Stops((after + close, close)), (self.parameter.open, self.close, run.close)
        while True:
            text, stop = yield from reader.some(stops)
            add(run.answer.spelled(text))
            if stop:
                closing = reader.take(stop) + (yield from reader.take_all(SPACE))
                follower = yield from reader.next_of(*followers)
                if follower or not (yield from reader.peek()):
                    return follower
                add(run.answer.spelled(closing))
            elif stop is not None:
                return None


def _named(head: str) -> str:
    """Returns the name in a tag: the attribute that is called so, or the whole head. NoCall for anything else."""
    found = _NAME_ATTRIBUTE.search(head)
    if found is not None and not _ATTRIBUTES.fullmatch(head):
        raise NoCall
    return (found[1] if found else head).strip().strip("\"'")


def _types_of(tool: ToolSpec | None, key: str) -> frozenset[str]:
    properties = tool.parameters.get("properties") if tool else None
    return types_in(properties.get(key) if isinstance(properties, dict) else None)


def _json_of(text: str, types: frozenset[str]) -> str:
    """Returns the text itself where it is JSON of a type in `types`, which is empty for any; otherwise as a string."""
    plain = _PYTHON_WORDS.get(text.strip(), text.strip())
    try:
        value = cast("Json", json.loads(plain, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        pass
    else:
        is_wanted = type_of(value) in types or (type_of(value) == "integer" and "number" in types)
        if is_wanted or not types or "string" not in types:
            return plain
    return json.dumps(text, ensure_ascii=False)


def _refuse_constant(name: str) -> Json:
    raise ValueError(name)
