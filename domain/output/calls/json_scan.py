"""Follows one JSON value through text that comes in pieces, to know where it ends or breaks.

The grammar is JSON's, but for control characters in strings and the digits after `\\u`, which are let through: the end
is certain all the same. Memory is one character an open bracket.
"""

import re
from collections.abc import Callable

_SPACE = re.compile(r"[ \t\r\n]*")
_IN_STRING = re.compile(r'[^"\\\ud800-\udfff]*')
_SCALAR_CHARS = re.compile(r"[A-Za-z0-9+.-]+")
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")


class JsonScan:
    """`is_over`: at the end of the value, or `is_broken` at a character that cannot stand there."""

    __slots__ = ("_await", "_closers", "_is_key", "_scalar", "is_broken", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self.is_broken = False
        self._await: Callable[[str, int], int] = self._value
        self._closers: list[str] = []
        self._is_key = False
        self._scalar: list[str] = []

    def follow(self, text: str, at: int) -> int:
        """How far the value goes in the text from `at`."""
        while at < len(text) and not self.is_over:
            at = self._await(text, at)
        return at

    def _value(self, text: str, at: int) -> int:
        at = _after_space(text, at)
        char = text[at : at + 1]
        if char == '"':
            self._await = self._string
        elif char == "{":
            self._closers.append("}")
            self._await = self._first_key
        elif char == "[":
            self._closers.append("]")
            self._await = self._first_item
        elif char and _SCALAR_CHARS.match(char):
            self._await = self._scalar_part
            return at
        elif char:
            return self._break(at)
        return at + len(char)

    def _first_item(self, text: str, at: int) -> int:
        at = _after_space(text, at)
        if text.startswith("]", at):
            return self._close(at)
        if at < len(text):
            self._await = self._value
        return at

    def _first_key(self, text: str, at: int) -> int:
        at = _after_space(text, at)
        if text.startswith("}", at):
            return self._close(at)
        if at < len(text):
            self._await = self._key
        return at

    def _key(self, text: str, at: int) -> int:
        at = self._one_of('"', text, at)
        if self._await == self._string:
            self._is_key = True
        return at

    def _string(self, text: str, at: int) -> int:
        found = _IN_STRING.match(text, at)
        assert found is not None
        at = found.end()
        char = text[at : at + 1]
        if char == '"':
            if self._is_key:
                self._is_key, self._await = False, self._colon
            else:
                self._value_ended()
        elif char == "\\":
            self._await = self._escaped
        elif char:
            return self._break(at)
        return at + len(char)

    def _escaped(self, text: str, at: int) -> int:
        if text[at] not in '"\\/bfnrtu':
            return self._break(at)
        self._await = self._string
        return at + 1

    def _colon(self, text: str, at: int) -> int:
        return self._one_of(":", text, at)

    def _more(self, text: str, at: int) -> int:
        at = _after_space(text, at)
        if text.startswith(self._closers[-1], at):
            return self._close(at)
        return self._one_of(",", text, at)

    def _one_of(self, wanted: str, text: str, at: int) -> int:
        """Read the one character that may come, and go on to what follows it."""
        at = _after_space(text, at)
        if at == len(text):
            return at
        if text[at] != wanted:
            return self._break(at)
        if wanted == '"':
            self._await = self._string
        elif wanted == ":" or self._closers[-1] == "]":
            self._await = self._value
        else:
            self._await = self._key
        return at + 1

    def _scalar_part(self, text: str, at: int) -> int:
        found = _SCALAR_CHARS.match(text, at)
        end = found.end() if found else at
        self._scalar.append(text[at:end])
        if end < len(text):
            if not _SCALAR.fullmatch("".join(self._scalar)):
                return self._break(end)
            self._scalar.clear()
            self._value_ended()
        return end

    def _close(self, at: int) -> int:
        self._closers.pop()
        self._value_ended()
        return at + 1

    def _value_ended(self) -> None:
        self._await = self._more
        self.is_over = not self._closers

    def _break(self, at: int) -> int:
        self.is_over = self.is_broken = True
        return at


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
