"""The protocol of formats in which families write tool calls, and the parts that formats share.

A format reads from where its call begins. Until the call's name is certain it raises NoCall for anything else, and all
text read so far becomes text of the answer. From `Run.begin` on it is a call: the text that follows belongs to its
arguments, well formed or not, and NoCall only says that no more of a call follows.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from domain.output.answer import Answer
from domain.output.reader import NoCall, Reading, Stops, TextReader
from domain.request.chat import ToolSpec

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


MAX_NAME_CHARS = 256
MAX_HEAD_CHARS = 512
"""What stands before a call's arguments is held back; no more than this of it."""

LIST_STARTS = ("[{", "[ ", "[\n", "[\t", "[\r")
"""How a list of JSON objects begins, as lists of other calls do not."""

_NAME = re.compile(r"[\w.:/@$-]+")
_ID = re.compile(r"[\w.:/@$-]{1,300}")


@dataclass(frozen=True, slots=True)
class Run:
    """One place where calls are read. `ends`: what closes it, or opens another call. `only_known`: nothing marks a
    call here, so only the names of given tools make one."""

    reader: TextReader
    answer: Answer
    tools: Mapping[str, ToolSpec]
    close: str = ""
    ends: tuple[str, ...] = ()
    only_known: bool = False

    def check_name(self, name: str) -> None:
        """Raises NoCall unless it can be a tool's."""
        if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name) or (self.only_known and name not in self.tools):
            raise NoCall

    def begin(self, name: str, wanted_id: str = "") -> None:
        self.check_name(name)
        self.answer.begin_call(name, wanted_id if _ID.fullmatch(wanted_id) else "")
        self.reader.mark()

    def stream_json(self, ends: tuple[str, ...] = ()) -> Reading[None]:
        """Pass the JSON value that comes next on as arguments. Where it breaks, so is all up to the close; NoCall."""
        reader, scan = self.reader, JsonScan()
        while not scan.is_over:
            text = yield from reader.follow(scan)
            self.answer.arguments(text)
            reader.mark()
            if not text and not scan.is_over:
                raise NoCall
        if not scan.is_broken:
            return
        stops, stop = Stops((*ends, self.close, *self.ends)), None
        while stop is None:
            text, stop = yield from reader.some(stops)
            self.answer.arguments(text)
            reader.mark()
        raise NoCall


class CallFormat(Protocol):
    """`open` stands before a call, `close` after it; empty where nothing does."""

    @property
    def open(self) -> str: ...
    @property
    def close(self) -> str: ...
    def fits(self, start: str) -> bool:
        """Whether a call without `open` may begin so: with this character, or this one of `LIST_STARTS`."""
        ...

    def read(self, run: Run) -> Reading[None]:
        """Read the call, or several in a row."""
        ...
