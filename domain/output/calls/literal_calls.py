"""Calls written like code: `[name(key="value", other=[1, True])]`, or `call:name{key:<|"|>value<|"|>}`.

The arguments' JSON is written as the values come.
"""

import json
import re
from dataclasses import dataclass

from domain.output.calls.call_format import Run
from domain.output.calls.literal_value import LiteralStyle, read_literal
from domain.output.reader import SPACE, NoCall, Reading

_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class LiteralCalls:
    """`before_name`: what stands before each name. `is_list`: calls stand in brackets, with commas between."""

    style: LiteralStyle
    before_name: str = ""
    brackets: tuple[str, str] = ("(", ")")
    is_list: bool = False
    open: str = ""
    close: str = ""

    def fits(self, start: str) -> bool:
        return start.isalpha() or start == "_" or (self.is_list and start == "[")

    def read(self, run: Run) -> Reading[None]:
        reader = run.reader
        in_list = self.is_list and (yield from reader.peek()) == "["
        if run.only_known and self.is_list and not in_list:
            raise NoCall
        if in_list:
            reader.take("[")
        while True:
            yield from self._call(run)
            char = yield from reader.peek_past_space()
            if in_list and char == "]":
                reader.take(char)
                reader.mark()
            if not in_list or char != ",":
                return
            reader.take(char)
            yield from reader.take_all(SPACE)

    def _call(self, run: Run) -> Reading[None]:
        reader, (opening, closing) = run.reader, self.brackets
        if self.before_name:
            yield from reader.expect(self.before_name)
        yield from reader.take_all(SPACE)
        name = yield from reader.take_all(_NAME)
        run.check_name(name)
        yield from reader.expect(opening)
        char = yield from reader.peek_past_space()
        if char == closing:
            run.begin(name)
            run.answer.arguments("{")
        separator = ""
        while char != closing:
            key = yield from self._key(run)
            if not separator:
                run.begin(name)
                run.answer.arguments("{")
            run.answer.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            reader.mark()
            separator = ", "
            yield from read_literal(run, self.style)
            char = yield from reader.peek_past_space()
            if char == ",":
                reader.take(char)
                char = yield from reader.peek_past_space()
            elif char != closing:
                raise NoCall
        reader.take(closing)
        run.answer.arguments("}")
        reader.mark()

    def _key(self, run: Run) -> Reading[str]:
        key = yield from run.reader.take_all(_NAME)
        if not key:
            raise NoCall
        yield from run.reader.expect(self.style.assign)
        return key
