"""One answer's text in, its content out: the machine for a model's output format.

Fed with text in which special tokens may stand as marks. What comes out, joined, is the same for every split
of the text, and nothing in it is lost: what is no call is text.
"""

from collections.abc import Callable, Iterable, Sequence

from domain.output.answer import Answer, CallIds
from domain.output.channel_answer import ChannelAnswer
from domain.output.marked_answer import MarkedAnswer
from domain.output.output_format import PreparedFormat
from domain.output.reader import Reading, TextReader
from domain.request.chat import ToolSpec
from domain.request.stream import ContentDelta


class TextParser:
    """`prompt_end`: the last characters of the prompt, in which the answer may have been opened. `prefilled`: the text
    with which the prompt has begun it. `taken_ids`: of calls earlier in the conversation."""

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
        self._answer = answer = Answer(CallIds(new_call_id, taken_ids, family.id_chars), output.spellings)
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
        """The answer's end: what was held back."""
        self._reader.end()
        next(self._reading, None)
        self._answer.end()
        return self._answer.take()
