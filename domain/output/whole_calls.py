"""Calls that somebody else's parser reads, whole: held back from their opening to their close.

The parser may need more than linear time, so it is given no more than `max_chars`; a longer call is text.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from domain.chat import Json, ToolSpec
from domain.output.call_format import Run
from domain.output.reader import NoCall, Reading, Stops

ParsedCall = tuple[str, Mapping[str, Json]]
ParseCalls = Callable[[str, Sequence[ToolSpec]], Sequence[ParsedCall]]
"""Names and arguments of the calls in a text. Raises ValueError where it holds none."""


@dataclass(frozen=True, slots=True)
class WholeCalls:
    parse: ParseCalls
    max_chars: int = 32_768
    open: str = ""
    close: str = ""

    def fits(self, start: str) -> bool:
        return True

    def read(self, run: Run) -> Reading[None]:
        text, _ = yield from run.reader.up_to(Stops((self.close or run.close,)), self.max_chars)
        try:
            calls = self.parse(run.answer.spelled(text), tuple(run.tools.values()))
        except ValueError:
            raise NoCall from None
        for name, _ in calls:
            run.check_name(name)
        for name, arguments in calls:
            run.begin(name)
            run.answer.arguments(json.dumps(arguments, ensure_ascii=False))
        if not calls:
            raise NoCall


__all__ = ("ParseCalls", "ParsedCall", "WholeCalls")
