"""Reads an answer that is a row of messages with headers, as harmony (gpt-oss) has it.

    <|channel|>analysis<|message|>...<|end|>                                                  reasoning
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{}<|call|>      a call
    <|start|>assistant<|channel|>final<|message|>...<|return|>                                text; other channels too

The prompt ends with `<|start|>assistant`, so an answer begins inside a header; a recipient may stand before the channel
as well. What has no header is text.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from domain.output.answer import Answer
from domain.output.calls.call_format import MAX_HEAD_CHARS, Run
from domain.output.family import Channels
from domain.output.reader import NoCall, Reading, Stops, TextReader
from domain.request.chat import ToolSpec

_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<\ud800-\udfff]+)")


@dataclass(frozen=True, slots=True)
class ChannelAnswer:
    reader: TextReader
    answer: Answer
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
        """What was read is text, but for a header that the answer ends in: it says nothing to anyone."""
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
