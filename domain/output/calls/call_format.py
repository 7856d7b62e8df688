"""How a family writes a tool call, and what a format needs to read one.

A format reads from where its call begins. Until the call's name is certain it raises NoCall for what is none, and all
it read becomes text. From `Run.begin` on it is a call: what the model then writes belongs to the arguments, well formed
or not, and NoCall only says that no more of a call follows.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from domain.output.answer import Answer
from domain.output.calls.json_scan import JsonScan
from domain.output.reader import NoCall, Reading, Stops, TextReader
from domain.request.chat import ToolSpec

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
