"""A reader of calls written like code: `[name(key="value", other=[1, True])]`, or `call:name{key:<|"|>value<|"|>}`.

Values are written as JSON while they are read: strings in a family's own quotes, lists, tuples, mappings with bare or
quoted keys, numbers, and words. A word that is neither a number nor a constant is a string.
"""

import json
import re
from dataclasses import dataclass

from domain.output.call_format import Run
from domain.output.reader import SPACE, NoCall, Reading, Stops

_NAME = re.compile(r"[\w.-]+")


_MAX_DEPTH = 64
_WORD = re.compile(r"[^,\]})\ud800-\udfff]+")
_KEY = re.compile(r"[^\s:=,\]})\ud800-\udfff]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_NO_CHARACTER = 0x110000
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_HEX = re.compile(r"[0-9a-fA-F]")
_CLOSING = {"[": "]", "(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class LiteralStyle:
    """`quotes`: what opens and closes a string, alike. `assign`: between a parameter's name and its value."""

    quotes: tuple[str, ...]
    assign: str
    has_escapes: bool


def read_literal(run: Run, style: LiteralStyle, depth: int = 0) -> Reading[None]:
    """Write the value that comes next as arguments. NoCall where it breaks, with what is not written unsettled."""
    reader = run.reader
    char = yield from reader.peek_past_space()
    quote = yield from reader.next_of(*style.quotes)
    if quote:
        yield from _string(run, style, quote)
    elif char in _CLOSING and char:
        if depth == _MAX_DEPTH:
            raise NoCall
        yield from _container(run, style, char, depth)
    else:
        word = (yield from reader.take_all(_WORD)).strip()
        if not word:
            raise NoCall
        is_plain = _NUMBER.fullmatch(word) is not None
        run.answer.arguments(_CONSTANTS.get(word) or (word if is_plain else json.dumps(word, ensure_ascii=False)))
    reader.mark()


def _container(run: Run, style: LiteralStyle, opening: str, depth: int) -> Reading[None]:
    reader, closing = run.reader, _CLOSING[opening]
    is_mapping = opening == "{"
    reader.take(opening)
    run.answer.arguments("{" if is_mapping else "[")
    char = yield from reader.peek_past_space()
    separator = ""
    while char != closing:
        run.answer.arguments(separator)
        reader.mark()
        if is_mapping:
            yield from _key(run, style)
        yield from read_literal(run, style, depth + 1)
        separator = ", "
        char = yield from reader.peek_past_space()
        if char == ",":
            reader.take(char)
            char = yield from reader.peek_past_space()
        elif char != closing:
            raise NoCall
    reader.take(closing)
    run.answer.arguments("}" if is_mapping else "]")


def _key(run: Run, style: LiteralStyle) -> Reading[None]:
    reader = run.reader
    quote = yield from reader.next_of(*style.quotes)
    if quote:
        yield from _string(run, style, quote)
    else:
        key = yield from reader.take_all(_KEY)
        if not key:
            raise NoCall
        run.answer.arguments(json.dumps(key, ensure_ascii=False))
    yield from reader.expect(":")
    run.answer.arguments(": ")


def _string(run: Run, style: LiteralStyle, quote: str) -> Reading[None]:
    reader = run.reader
    reader.take(quote)
    reader.mark()
    run.answer.arguments('"')
    stops = Stops((quote, "\\")) if style.has_escapes else Stops((quote,))
    while True:
        text, stop = yield from reader.some(stops)
        run.answer.arguments(_escaped(run.answer.spelled(text)))
        reader.mark()
        if stop == "\\":
            run.answer.arguments((yield from _escape(run)))
        elif stop == quote:
            break
        elif stop == "":
            raise NoCall
    reader.take(quote)
    run.answer.arguments('"')
    reader.mark()


def _escape(run: Run) -> Reading[str]:
    """The JSON for the character behind an escape; for the escape itself where it means none."""
    reader = run.reader
    reader.take("\\")
    kind = yield from reader.peek()
    if not kind:
        raise NoCall
    reader.take(kind)
    num_digits = _HEX_DIGITS.get(kind)
    if num_digits is None:
        return _escaped(_ESCAPES.get(kind, kind if kind in "\\'\"" else run.answer.spelled("\\" + kind)))
    digits = ""
    while len(digits) < num_digits and _HEX.match(digit := (yield from reader.peek())):
        digits += reader.take(digit)
    code = int(digits, 16) if len(digits) == num_digits else _NO_CHARACTER
    if code > 0xFFFF:
        return _escaped(chr(code) if code < _NO_CHARACTER else f"\\{kind}{digits}")
    return f"\\u{code:04x}"


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


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
