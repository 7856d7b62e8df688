"""A reader of calls written like code: `[name(key="value", other=[1, True])]`, or `call:name{key:<|"|>value<|"|>}`.

Values are written as JSON while they are read: strings in a family's own quotes, lists, tuples, mappings with bare or
quoted keys, numbers, and words. A word that is neither a number nor a constant is a string.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from domain.output.call_format import Run
from domain.output.reader import SPACE, NoCall, Reading, Stops

_MAX_DEPTH = 64
_NAME = re.compile(r"[\w.-]+")
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
class LiteralCalls:
    """`quotes`: marks that both open and close a string. `assign`: between a parameter's name and its value.
    `before_name`: before each call's name. `is_list`: calls stand in brackets, with commas between."""

    quotes: tuple[str, ...]
    assign: str
    has_escapes: bool = False
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

        def parameter(separator: str) -> Reading[None]:
            key = yield from reader.take_all(_NAME)
            if not key:
                raise NoCall
            yield from reader.expect(self.assign)
            if not separator:
                run.begin(name)
                run.write("{")
            run.write(f"{separator}{_json(key)}: ")
            yield from self._value(run, 0)

        if (yield from reader.peek_past_space()) == closing:
            run.begin(name)
            run.write("{")
        yield from _items(run, closing, parameter)
        run.write("}")

    def _value(self, run: Run, depth: int) -> Reading[None]:
        """Write the value that comes next as arguments. NoCall where it breaks, with the text since then unsettled."""
        reader = run.reader
        char = yield from reader.peek_past_space()
        quote = yield from reader.next_of(*self.quotes)
        if quote:
            yield from self._string(run, quote)
        elif char and char in _CLOSING:
            if depth == _MAX_DEPTH:
                raise NoCall
            yield from self._container(run, char, depth)
        else:
            word = (yield from reader.take_all(_WORD)).strip()
            if not word:
                raise NoCall
            run.write(_CONSTANTS.get(word) or (word if _NUMBER.fullmatch(word) else _json(word)))

    def _container(self, run: Run, opening: str, depth: int) -> Reading[None]:
        is_mapping = opening == "{"

        def item(separator: str) -> Reading[None]:
            run.write(separator)
            if is_mapping:
                yield from self._key(run)
            yield from self._value(run, depth + 1)

        run.reader.take(opening)
        run.answer.arguments("{" if is_mapping else "[")
        yield from _items(run, _CLOSING[opening], item)
        run.write("}" if is_mapping else "]")

    def _key(self, run: Run) -> Reading[None]:
        reader = run.reader
        quote = yield from reader.next_of(*self.quotes)
        if quote:
            yield from self._string(run, quote)
        else:
            key = yield from reader.take_all(_KEY)
            if not key:
                raise NoCall
            run.answer.arguments(_json(key))
        yield from reader.expect(":")
        run.answer.arguments(": ")

    def _string(self, run: Run, quote: str) -> Reading[None]:
        reader = run.reader
        reader.take(quote)
        run.write('"')
        stops = Stops((quote, "\\")) if self.has_escapes else Stops((quote,))
        while True:
            text, stop = yield from reader.some(stops)
            run.write(escaped(run.answer.spelled(text)))
            if stop == "\\":
                run.answer.arguments((yield from _escape(run)))
            elif stop == quote:
                break
            elif stop == "":
                raise NoCall
        reader.take(quote)
        run.write('"')


def _items(run: Run, closing: str, item: Callable[[str], Reading[None]]) -> Reading[None]:
    """Read items with commas between them up to and with the closing bracket. `item` reads one, after writing the
    separator. NoCall where something else follows an item."""
    reader = run.reader
    char, separator = (yield from reader.peek_past_space()), ""
    while char != closing:
        yield from item(separator)
        separator = ", "
        char = yield from reader.peek_past_space()
        if char == ",":
            reader.take(char)
            char = yield from reader.peek_past_space()
        elif char != closing:
            raise NoCall
    reader.take(closing)


def _escape(run: Run) -> Reading[str]:
    """Returns the JSON for the character behind an escape; for the escape itself where it stands for none."""
    reader = run.reader
    reader.take("\\")
    kind = yield from reader.peek()
    if not kind:
        raise NoCall
    reader.take(kind)
    num_digits = _HEX_DIGITS.get(kind)
    if num_digits is None:
        return escaped(_ESCAPES.get(kind, kind if kind in "\\'\"" else run.answer.spelled("\\" + kind)))
    digits = ""
    while len(digits) < num_digits and _HEX.match(digit := (yield from reader.peek())):
        digits += reader.take(digit)
    code = int(digits, 16) if len(digits) == num_digits else _NO_CHARACTER
    if code > 0xFFFF:
        return escaped(chr(code) if code < _NO_CHARACTER else f"\\{kind}{digits}")
    return f"\\u{code:04x}"


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """Returns a text as it stands in a JSON string."""
    return _json(text)[1:-1]
