"""The protocol of formats in which families write tool calls, and the parts that formats share.

A format reads from where its call begins. Until the call's name is certain it raises NoCall for anything else, and all
text read so far becomes text of the answer. From `Run.begin` on it is a call: the text that follows belongs to its
arguments, well formed or not, and NoCall only says that no more of a call follows.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from domain.output.content import AnswerContent
from domain.output.reader import NoCall, Reading, Stops, TextReader
from domain.request.chat import ToolSpec

MAX_NAME_CHARS = 256
MAX_HEAD_CHARS = 512
"""The most characters before a call's arguments, which are held back."""

LIST_STARTS = ("[{", "[ ", "[\n", "[\t", "[\r")
"""Beginnings of a list of JSON objects, which lists of other calls do not have."""

_NAME = re.compile(r"[\w.:/@$-]+")
_ID = re.compile(r"[\w.:/@$-]{1,300}")

_JSON_SPACE = re.compile(r"[ \t\r\n]*")
_IN_STRING = re.compile(r'[^"\\\ud800-\udfff]*')
_SCALAR_CHARS = re.compile(r"[A-Za-z0-9+.-]*")
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")


@dataclass(frozen=True, slots=True)
class Run:
    """One place where calls are read. `ends`: the texts that close it, or open another call. `only_known`: nothing
    marks a call here, so only the names of given tools make one."""

    reader: TextReader
    answer: AnswerContent
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

    def write(self, text: str) -> None:
        """Add arguments that stand for all that was read."""
        self.answer.arguments(text)
        self.reader.mark()

    def stream_json(self, ends: tuple[str, ...] = ()) -> Reading[None]:
        """Pass the JSON value that comes next on as arguments. Where it breaks, so is all up to the close; NoCall."""
        if (yield from read_json(self.reader, self.write)):
            return
        stops, stop = Stops((*ends, self.close, *self.ends)), None
        while stop is None:
            text, stop = yield from self.reader.some(stops)
            self.write(text)
        raise NoCall


class CallFormat(Protocol):
    """`open` stands before a call, `close` after it; empty where nothing does."""

    @property
    def open(self) -> str: ...
    @property
    def close(self) -> str: ...
    def fits(self, start: str) -> bool:
        """Returns True if a call without `open` may begin with this character, or this one of `LIST_STARTS`."""
        ...

    def read(self, run: Run) -> Reading[None]:
        """Read the call, or several in a row."""
        ...


class _Next(Enum):
    """The part of a JSON value that comes next."""

    VALUE = auto()
    FIRST_ITEM = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    MORE = auto()


_VALUES = frozenset({_Next.VALUE, _Next.FIRST_ITEM})
_KEYS = frozenset({_Next.FIRST_KEY, _Next.KEY})
_MAY_CLOSE = frozenset({_Next.FIRST_ITEM, _Next.FIRST_KEY, _Next.MORE})


def read_json(reader: TextReader, write: Callable[[str], None]) -> Reading[bool]:
    """Pass the JSON value that comes next to `write`, piece by piece. Returns False where it breaks or does not end.

    The grammar is JSON's, but for control characters in strings and the digits after `\\u`, which are let through: the
    end is certain all the same. Memory is one character an open bracket.
    """
    closers: list[str] = []
    wanted = _Next.VALUE
    while wanted is not _Next.MORE or closers:
        write((yield from reader.take_all(_JSON_SPACE)))
        char = yield from reader.peek()
        following = _after(char, wanted, closers)
        if following is not None:
            write(reader.take(char))
            wanted = following
        elif char == '"' and wanted in _VALUES | _KEYS:
            if not (yield from _read_string(reader, write)):
                return False
            wanted = _Next.COLON if wanted in _KEYS else _Next.MORE
        elif wanted in _VALUES:
            scalar = yield from reader.take_all(_SCALAR_CHARS)
            write(scalar)
            if not _SCALAR.fullmatch(scalar) or not (yield from reader.peek()):
                return False
            wanted = _Next.MORE
        else:
            return False
    return True


def _after(char: str, wanted: _Next, closers: list[str]) -> _Next | None:
    """Returns the part that follows a bracket, comma or colon, and keep account of open brackets; None for any other
    character, and where this one cannot stand."""
    if wanted in _MAY_CLOSE and char == closers[-1]:
        closers.pop()
        return _Next.MORE
    if char == "," and wanted is _Next.MORE:
        return _Next.VALUE if closers[-1] == "]" else _Next.KEY
    if char == ":" and wanted is _Next.COLON:
        return _Next.VALUE
    if char in ("{", "[") and wanted in _VALUES:
        closers.append("}" if char == "{" else "]")
        return _Next.FIRST_KEY if char == "{" else _Next.FIRST_ITEM
    return None


def _read_string(reader: TextReader, write: Callable[[str], None]) -> Reading[bool]:
    write(reader.take('"'))
    while True:
        text = yield from reader.take_some(_IN_STRING)
        write(text)
        char = yield from reader.peek()
        if char == '"':
            write(reader.take(char))
            return True
        if char == "\\":
            write(reader.take(char))
            escaped = yield from reader.peek()
            if not escaped or escaped not in '"\\/bfnrtu':
                return False
            write(reader.take(escaped))
        elif not text:  # a special token, or the end
            return False
