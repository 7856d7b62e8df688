"""Readers of calls whose arguments are JSON: `{"name": ..., "arguments": {...}}`, and `name[ARGS]{...}`.

Arguments are passed on as the model writes them; where they precede the name, once the name was read. An object with
other members is not a call.
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass

from domain.output.call_format import LIST_STARTS, MAX_HEAD_CHARS, Run, read_json
from domain.output.reader import SPACE, NoCall, Reading, Stops, TextReader

_NAME_KEYS = frozenset({"name", "tool_name"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_ID_KEYS = frozenset({"id", "tool_call_id"})


@dataclass(slots=True)
class _Call:
    """A call that is being read. `held`: arguments that precede the name."""

    name: str = ""
    id: str = ""
    held: str | None = None
    is_begun: bool = False
    is_nested: bool = False


@dataclass(frozen=True, slots=True)
class JsonCalls:
    open: str = ""
    close: str = ""

    def fits(self, start: str) -> bool:
        return start == "{" or start in LIST_STARTS

    def read(self, run: Run) -> Reading[None]:
        reader = run.reader
        is_list = (yield from reader.peek()) == "["
        if is_list:
            reader.take("[")
        while True:
            yield from self._object(run)
            char = yield from reader.peek_past_space()
            if is_list and char == "]":
                reader.take(char)
                reader.mark()
                return
            if not char or char not in ",;":
                return
            reader.take(char)

    def _object(self, run: Run) -> Reading[None]:
        call = _Call()
        yield from self._members(run, call)
        if not call.is_begun:
            run.begin(call.name, call.id)
            run.answer.arguments("{}" if call.held is None else call.held)
        run.reader.mark()

    def _members(self, run: Run, call: _Call) -> Reading[None]:
        reader = run.reader
        yield from reader.expect("{")
        char = yield from reader.peek_past_space()
        while char != "}":
            key = yield from _string(reader)
            yield from reader.expect(":")
            yield from self._member(run, call, key, (yield from reader.peek_past_space()))
            char = yield from reader.peek_past_space()
            if char == ",":
                reader.take(char)
                yield from reader.take_all(SPACE)
            elif char != "}":
                raise NoCall
        reader.take("}")

    def _member(self, run: Run, call: _Call, key: str, char: str) -> Reading[None]:
        if key in _NAME_KEYS and char == '"' and not call.name:
            call.name = yield from _string(run.reader)
            run.check_name(call.name)
            if call.held is not None:
                self._begin(run, call)
                run.answer.arguments(call.held)
        elif key in _ARGUMENT_KEYS and not call.is_begun and call.held is None:
            yield from self._arguments(run, call, char)
        elif key in _ID_KEYS and char == '"':
            call.id = yield from _string(run.reader)
        elif key == "function" and char == "{" and not (call.name or call.is_nested):
            call.is_nested = True
            yield from self._members(run, call)
        elif key != "type" or (yield from _value(run.reader)) != '"function"':
            raise NoCall

    def _arguments(self, run: Run, call: _Call, char: str) -> Reading[None]:
        if call.name and char == "{":
            self._begin(run, call)
            yield from run.stream_json()
            return
        text = yield from _value(run.reader)
        if char == '"':
            text = _parsed(text)
        elif text == "null":
            text = "{}"
        if call.name:
            self._begin(run, call)
            run.answer.arguments(text)
        else:
            call.held = text

    def _begin(self, run: Run, call: _Call) -> None:
        run.begin(call.name, call.id)
        call.is_begun = True


def _value(reader: TextReader) -> Reading[str]:
    """Returns the text of the JSON value that comes next. NoCall where it breaks or does not end."""
    parts: list[str] = []
    if not (yield from read_json(reader, parts.append)):
        raise NoCall
    return "".join(parts)


def _string(reader: TextReader) -> Reading[str]:
    if (yield from reader.peek_past_space()) != '"':
        raise NoCall
    return _parsed((yield from _value(reader)))


def _parsed(string: str) -> str:
    try:
        text = str(json.loads(string, strict=False))
    except ValueError:
        raise NoCall from None
    return text.encode("utf-8", "replace").decode()  # escapes can spell halves of characters


_FENCE = "```"


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """`head`: what the head looks like, with groups `name` and perhaps `id`; `marks`: the markers in it."""

    head: re.Pattern[str]
    marks: tuple[str, ...] = ()
    open: str = ""
    close: str = ""

    def fits(self, start: str) -> bool:
        return not self.open and (start.isalnum() or start in "_-")

    def read(self, run: Run) -> Reading[None]:
        reader = run.reader
        reader.take(self.open)
        head, stop = yield from reader.up_to(Stops(("{", self.close, run.close, *run.ends)), MAX_HEAD_CHARS)
        found = self.head.fullmatch(run.answer.spelled(head).strip())
        if found is None or stop in run.ends:
            raise NoCall
        run.begin(found["name"], found.groupdict().get("id") or "")
        if stop == "{":
            with suppress(NoCall):
                yield from run.stream_json((self.close,))
        else:
            run.answer.arguments("{}")
        yield from self._end(run)

    def _end(self, run: Run) -> Reading[None]:
        """Skips a code fence around the arguments, and the mark that closes the call."""
        reader = run.reader
        for literal in (_FENCE, self.close):
            yield from reader.take_all(SPACE)
            if (yield from reader.next_of(literal)):
                reader.take(literal)
                reader.mark()
