"""One answer's text in, its content out: the machine for a model's output format.

Fed with text in which special tokens may stand as marks (`marks`). What comes out, joined, is the same for every split
of the text, and nothing in it is lost: what is no call is text.
"""

from collections.abc import Callable, Iterable, Sequence

from domain.chat import ToolSpec
from domain.output.answer import Answer
from domain.output.call_ids import CallIds
from domain.output.channel_answer import ChannelAnswer
from domain.output.family import marks_for, with_marks
from domain.output.marked_answer import MarkedAnswer
from domain.output.output_format import OutputFormat
from domain.output.reader import Reading, TextReader
from domain.stream import ContentDelta


class TextParser:
    """`prompt_end`: the last characters of the prompt, in which reasoning may have been opened. `taken_ids`: of calls
    earlier in the conversation."""

    def __init__(
        self,
        output: OutputFormat,
        *,
        new_call_id: Callable[[], str],
        special_tokens: Iterable[str] = (),
        tools: Sequence[ToolSpec] = (),
        prompt_end: str = "",
        taken_ids: Iterable[str] = (),
    ) -> None:
        self.marks = marks_for((output.family, output.reasoning), special_tokens)
        spellings = {mark: token for token, mark in self.marks.items()}
        self._reader = TextReader()
        self._answer = Answer(CallIds(new_call_id, taken_ids, output.family.id_chars), spellings)
        family, reasoning = with_marks((output.family, output.reasoning), self.marks)
        by_name = {tool.name: tool for tool in tools}
        self._reading: Reading[None]
        if family.channels is not None:
            self._reading = ChannelAnswer(self._reader, self._answer, family.channels, by_name).read()
        else:
            marks = tuple(spellings)
            self._reading = MarkedAnswer(self._reader, self._answer, family, reasoning, by_name, marks).read()
        self.feed(with_marks(output.opening(prompt_end), self.marks))

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


__all__ = ("TextParser",)
