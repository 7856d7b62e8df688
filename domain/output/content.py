"""The content of one answer as it is parsed: reasoning, text and tool calls.

White space that touches markup belongs to the markup: templates write it there, and write it again when they render the
answer in the next turn. Other white space is kept, at the start and the end of the answer too.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from domain.request.stream import ContentDelta, ReasoningDelta, TextDelta, ToolCallDelta

_NUMBERED = re.compile(r"(.*:)[0-9]+")


class CallIds:
    """A source of unique ids for an answer's calls. `taken`: ids in the conversation so far. An id that the model wrote
    is kept, since its template renders the id again; where it is taken, one that ends in a number gets another number.
    `num_chars`: the length of generated ids; None for as they are."""

    __slots__ = ("_new_id", "_next", "_num_chars", "_taken")

    def __init__(self, new_id: Callable[[], str], taken: Iterable[str] = (), num_chars: int | None = None) -> None:
        self._new_id = new_id
        self._taken = set(taken)
        self._next = len(self._taken)
        self._num_chars = num_chars

    def take(self, wanted: str = "") -> tuple[str, bool]:
        """Returns an id, and True if it was generated here."""
        numbered = _NUMBERED.fullmatch(wanted)
        found, is_own = wanted or self._new(), not wanted
        while found in self._taken:
            if numbered:
                found = f"{numbered[1]}{self._next}"
                self._next += 1
            else:
                found, is_own = self._new(), True
        self._taken.add(found)
        return found, is_own

    def _new(self) -> str:
        return self._new_id()[-self._num_chars :] if self._num_chars else self._new_id()


class AnswerContent:
    """Collects the content of one answer. `spellings`: the text of each special token that is one character in the
    input."""

    __slots__ = (
        "_deltas",
        "_follows_markup",
        "_has_content",
        "_has_text",
        "_ids",
        "_kind",
        "_space",
        "_spellings",
        "num_calls",
    )

    def __init__(self, ids: CallIds, spellings: Mapping[str, str]) -> None:
        self.num_calls = 0
        self._ids = ids
        self._spellings = {ord(mark): text for mark, text in spellings.items()}
        self._deltas: list[ContentDelta] = []
        self._kind: type[TextDelta | ReasoningDelta] = TextDelta
        self._space: list[str] = []
        self._follows_markup = False
        self._has_content = False
        self._has_text = False

    @property
    def is_begun(self) -> bool:
        """True if there is text or a call, beyond white space and reasoning."""
        return self._has_text or self.num_calls > 0

    def text(self, text: str) -> None:
        self._add(TextDelta, text)

    def reasoning(self, text: str) -> None:
        self._add(ReasoningDelta, text)

    def markup(self) -> None:
        """Notes that a mark was read: white space before and after it is dropped."""
        self._space.clear()
        self._follows_markup = True

    def next_message(self) -> None:
        """Begin a new message: an empty line sets it off from one of the same kind."""
        self.markup()
        if self._has_content:
            self._space.append("\n\n")

    def begin_call(self, name: str, wanted_id: str = "") -> None:
        self.markup()
        self._has_content = False
        id, is_own = self._ids.take(wanted_id)
        self._deltas.append(ToolCallDelta(self.num_calls, id, name, is_own_id=is_own))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Adds arguments to the latest call."""
        if text:
            self._deltas.append(ToolCallDelta(self.num_calls - 1, arguments=self.spelled(text)))

    def spelled(self, text: str) -> str:
        return text.translate(self._spellings) if self._spellings else text

    def end(self) -> None:
        if not self._follows_markup:
            self._release_space()

    def take(self) -> tuple[ContentDelta, ...]:
        """Returns the deltas since the last call, neighbours of a kind as one."""
        runs: list[list[ContentDelta]] = []
        for delta in self._deltas:
            if runs and runs[-1][-1].merges_with(delta):
                runs[-1].append(delta)
            else:
                runs.append([delta])
        self._deltas.clear()
        return tuple(first.merged(rest) for first, *rest in runs)  # type: ignore[arg-type]

    def _add(self, kind: type[TextDelta | ReasoningDelta], text: str) -> None:
        if self._follows_markup:
            text = text.lstrip()
        if not text:
            return
        if kind is not self._kind:
            self._space.clear()
        self._follows_markup = False
        self._has_content = True
        self._kind = kind
        end = len(text.rstrip())
        if end:
            self._release_space()
            self._deltas.append(kind(self.spelled(text[:end])))
            self._has_text = self._has_text or kind is TextDelta
        if end < len(text):
            self._space.append(text[end:])

    def _release_space(self) -> None:
        if self._space:
            self._deltas.append(self._kind("".join(self._space)))
            self._space.clear()
