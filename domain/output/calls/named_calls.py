"""Calls whose name stands before their arguments, which are plain JSON: `name[ARGS]{...}`.

Between the call's opening and the first brace stands its head: the name, perhaps an id, and marks around them.
"""

import re
from contextlib import suppress
from dataclasses import dataclass

from domain.output.calls.call_format import MAX_HEAD_CHARS, Run
from domain.output.reader import SPACE, NoCall, Reading, Stops

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
        """Past a code fence around the arguments, and the mark that closes the call."""
        reader = run.reader
        for literal in (_FENCE, self.close):
            yield from reader.take_all(SPACE)
            if (yield from reader.next_of(literal)):
                reader.take(literal)
                reader.mark()
