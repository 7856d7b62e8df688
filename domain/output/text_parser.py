"""The parser of one answer's text: text in, reasoning, text and tool calls out.

Special tokens may stand as marks in the text. The deltas, joined, are the same for every split of the text, and nothing
is lost: text that is no call is text of the answer.

    MarkedAnswer     reasoning and calls stand between marks, in text
    ChannelAnswer    the answer is a sequence of messages with headers, as in harmony (gpt-oss)
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from domain.output.call_format import LIST_STARTS, MAX_HEAD_CHARS, CallFormat, Run
from domain.output.content import AnswerContent, CallIds
from domain.output.family import Channels, Family, ReasoningTags, Section
from domain.output.output_format import PreparedFormat
from domain.output.reader import FIRST_MARK, LAST_MARK, SPACE, NoCall, Reading, Stops, TextReader
from domain.request.chat import ToolSpec
from domain.request.stream import ContentDelta

_BRACKETS = re.compile(r"[\s}\]]*")


@dataclass(frozen=True, slots=True)
class MarkedAnswer:
    """Reads an answer whose reasoning and calls stand between marks, in text. `openers`: the marks that open calls,
    none without tools. `marks`: the characters of special tokens.

    Spelled reasoning tags count at the beginning only: later they are part of the text. Reasoning ends at its close, or
    where a special token opens a call. Without tools nothing is a call.
    """

    reader: TextReader
    answer: AnswerContent
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
        """Read reasoning from behind its opening tag. Some models repeat the tag that the prompt opened."""
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
        """Read calls without any mark."""
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
        """Read the calls of a section; the rest of it is text."""
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
        """Read the section's close, and surplus brackets before it."""
        reader = self.reader
        yield from reader.take_all(_BRACKETS)
        if (yield from reader.next_of(section.close)):
            reader.take(section.close)
            reader.mark()


def _is_token(mark: str) -> bool:
    return FIRST_MARK <= mark[0] <= LAST_MARK


_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<\ud800-\udfff]+)")


@dataclass(frozen=True, slots=True)
class ChannelAnswer:
    reader: TextReader
    answer: AnswerContent
    channels: Channels
    tools: Mapping[str, ToolSpec]

    def read(self) -> Reading[None]:
        reader, marks = self.reader, self.channels
        stops = Stops((marks.message, *marks.ends))
        while (yield from reader.peek()):
            reader.mark()
            self.answer.next_message()
            try:
                head, stop = yield from reader.up_to(stops, MAX_HEAD_CHARS)
            except NoCall:
                yield from self._headless()
                continue
            reader.take(stop)
            if stop == marks.message:
                yield from self._message(head)
            else:
                self.answer.text(head)

    def _headless(self) -> Reading[None]:
        """Add the text that was read, unless it is a header in which the answer ends."""
        text = self.reader.taken
        if (yield from self.reader.peek()) or not text.startswith((self.channels.start, self.channels.channel)):
            self.answer.text(text)
        yield from self._content(self.answer.text)

    def _message(self, head: str) -> Reading[None]:
        channel = head.partition(self.channels.channel)[2].strip()
        recipient = _RECIPIENT.search(head)
        add = self.answer.reasoning if channel.startswith("analysis") else self.answer.text
        if recipient is not None and self.tools:
            try:
                Run(self.reader, self.answer, self.tools).begin(recipient[1])
            except NoCall:
                self.answer.text(head)
            else:
                add = self.answer.arguments
        yield from self._content(add)

    def _content(self, add: Callable[[str], None]) -> Reading[None]:
        stops, stop = Stops((*self.channels.ends, self.channels.start)), None
        while stop is None:
            self.reader.mark()
            text, stop = yield from self.reader.some(stops)
            add(text)
        if stop != self.channels.start:
            self.reader.take(stop)


class TextParser:
    """Parses one answer. `prompt_end`: the last characters of the prompt, which may have opened the answer.
    `prefilled`: the text with which the prompt has begun it. `taken_ids`: ids of calls earlier in the conversation."""

    __slots__ = ("_answer", "_reader", "_reading")

    def __init__(
        self,
        output: PreparedFormat,
        *,
        new_call_id: Callable[[], str],
        tools: Sequence[ToolSpec] = (),
        prompt_end: str = "",
        prefilled: str = "",
        taken_ids: Iterable[str] = (),
    ) -> None:
        family, by_name = output.family, {tool.name: tool for tool in tools}
        self._reader = reader = TextReader()
        self._answer = answer = AnswerContent(CallIds(new_call_id, taken_ids, family.id_chars), output.spellings)
        self._reading: Reading[None]
        if family.channels is not None:
            self._reading = ChannelAnswer(reader, answer, family.channels, by_name).read()
        else:
            marks = tuple(output.spellings)
            openers = family.openers if tools else {}
            self._reading = MarkedAnswer(reader, answer, family, openers, output.reasoning, by_name, marks).read()
        self.feed(output.opening(prompt_end, prefilled))

    def feed(self, text: str) -> Sequence[ContentDelta]:
        self._reader.feed(text)
        next(self._reading, None)
        return self._answer.take()

    def finish(self) -> Sequence[ContentDelta]:
        """End the answer: return the content that was held back."""
        self._reader.end()
        next(self._reading, None)
        self._answer.end()
        return self._answer.take()
