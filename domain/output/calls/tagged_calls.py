"""Calls whose parameters stand between tags: `<function=name><parameter=key>value</parameter></function>`.

The arguments' JSON is written a parameter at a time; a string, which the tool's schema tells, as it comes. Values have
no escapes: a closing tag only closes where another tag of the call follows it.
"""

import json
import re
from dataclasses import dataclass

from domain.output.calls.call_format import MAX_HEAD_CHARS, Run
from domain.output.calls.tag_values import STRING, HeldValue, StringValue, types_of
from domain.output.reader import SPACE, NoCall, Reading, Stops

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
