"""Reads an answer whose reasoning and calls stand between marks, in text.

Spelled reasoning tags count at the beginning only: later they are what the answer is about. Reasoning ends at its
close, or where a special token opens a call. Without tools nothing is a call.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from domain.output.answer import Answer
from domain.output.calls.call_format import LIST_STARTS, CallFormat, Run
from domain.output.family import Family, ReasoningTags, Section
from domain.output.reader import FIRST_MARK, LAST_MARK, SPACE, NoCall, Reading, Stops, TextReader
from domain.request.chat import ToolSpec

_BRACKETS = re.compile(r"[\s}\]]*")


@dataclass(frozen=True, slots=True)
class MarkedAnswer:
    """`openers`: what opens calls here, none without tools. `marks`: the characters that stand for special tokens."""

    reader: TextReader
    answer: Answer
    family: Family
    openers: Mapping[str, Section]
    reasoning: ReasoningTags | None
    tools: Mapping[str, ToolSpec]
    marks: tuple[str, ...]

    def read(self) -> Reading[None]:
        reader, answer, tags = self.reader, self.answer, self.reasoning
        dropped = (tags.open, *tags.dropped) if tags is not None else ()
        stops, stop = Stops((*self.openers, *dropped, *self.marks)), None
        while stop != "":
            if self.tools and self.family.bare and not answer.is_begun:
                yield from self._bare()
            text, stop = yield from reader.some(stops)
            reader.mark()
            answer.text(text)
            if stop:
                yield from self._at(stop)

    def _at(self, stop: str) -> Reading[None]:
        reader, answer, tags = self.reader, self.answer, self.reasoning
        section = self.openers.get(stop)
        if section is not None:
            yield from self._calls(section, opening=stop if stop == section.open else "")
            return
        reader.take(stop)
        is_token = _is_token(stop)
        if tags is not None and stop == tags.open and (is_token or not answer.is_begun):
            yield from self._reason(tags)
        elif tags is not None and stop in tags.dropped:
            answer.markup()
        elif not is_token:
            answer.text(stop)

    def _reason(self, tags: ReasoningTags) -> Reading[None]:
        """From behind the opening tag to behind the closing one. Some models repeat the tag that the prompt opened."""
        reader, answer = self.reader, self.answer
        answer.markup()
        yield from reader.take_all(SPACE)
        reader.take((yield from reader.next_of(tags.open)))
        stops, stop = Stops((tags.close, *filter(_is_token, self.family.openers))), None
        while stop is None:
            text, stop = yield from reader.some(stops)
            reader.mark()
            answer.reasoning(text)
        if stop:
            answer.markup()
        if stop == tags.close:
            reader.take(stop)

    def _bare(self) -> Reading[None]:
        """A call that nothing marks, and those that follow it."""
        reader, answer = self.reader, self.answer
        answer.text((yield from reader.take_all(SPACE)))
        run = Run(reader, answer, self.tools, ends=tuple(self.openers), only_known=True)
        reader.mark()
        format_ = yield from self._next_format(self.family.bare)
        if format_ is not None:
            try:
                yield from format_.read(run)
            except NoCall:
                answer.text(reader.taken)

    def _calls(self, section: Section, opening: str) -> Reading[None]:
        """The calls of a section; what they are not is text."""
        reader, answer = self.reader, self.answer
        run = Run(reader, answer, self.tools, section.close, tuple(self.openers))
        num_before = answer.num_calls
        reader.mark()
        reader.take(opening)
        try:
            yield from reader.take_all(SPACE)
            while format_ := (yield from self._next_format(section.formats)):
                yield from format_.read(run)
                yield from reader.take_all(SPACE)
                if (yield from reader.next_of(*(one.open for one in self.family.sections))):
                    break
        except NoCall:
            pass
        if answer.num_calls > num_before and section.close and not reader.taken.strip():
            yield from self._close(section)
        answer.text(reader.taken)
        reader.mark()

    def _next_format(self, formats: tuple[CallFormat, ...]) -> Reading[CallFormat | None]:
        opening = yield from self.reader.next_of(*(one.open for one in formats))
        start = (yield from self.reader.next_of(*LIST_STARTS)) or (yield from self.reader.peek())
        for one in formats:
            if (one.open == opening) if opening else (start and not one.open and one.fits(start)):
                return one
        return None

    def _close(self, section: Section) -> Reading[None]:
        """Past the section's close, and past brackets too many before it."""
        reader = self.reader
        yield from reader.take_all(_BRACKETS)
        if (yield from reader.next_of(section.close)):
            reader.take(section.close)
            reader.mark()


def _is_token(mark: str) -> bool:
    return FIRST_MARK <= mark[0] <= LAST_MARK
