"""A reader of one answer's characters as they arrive.

A reading is a generator that yields whenever it needs more text, so a format is written as if the whole text were
present; `feed` and `end` resume it. How the text was split never changes what a reading sees.

A special token that is a mark is one character here, a lone surrogate, which decoded text cannot contain: a text that
merely spells the token is not the token.

Text that was read since `mark` can be returned. Nothing is ever read twice: text that a format has read and could not
use becomes text of the answer, so the work is linear in the text whatever a model writes.

Stop strings are matched in the text that comes out. Text that could still become one is held back, so a stop string
never leaks, wherever token boundaries fall.
"""

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]

SPACE = re.compile(r"\s*")
FIRST_MARK, LAST_MARK = "\ud800", "\udfff"


class NoCall(Exception):
    """The text that was read is no call, or no more of one."""


class Stops:
    """Literals to search for: the earliest matches, and of those that start together the longest."""

    __slots__ = ("_firsts", "_literals", "_longest", "pattern")

    def __init__(self, literals: tuple[str, ...]) -> None:
        self._literals = tuple(sorted({*filter(None, literals)}, key=len, reverse=True))
        self._longest = max(map(len, self._literals), default=0)
        self._firsts = frozenset(literal[0] for literal in self._literals)
        self.pattern = re.compile("|".join(map(re.escape, self._literals)) or "(?!)")

    def undecided_from(self, text: str, at: int) -> int:
        """First position from which the text may be the beginning of a literal."""
        for start in range(max(at, len(text) - self._longest + 1), len(text)):
            if text[start] in self._firsts and any(literal.startswith(text[start:]) for literal in self._literals):
                return start
        return len(text)

    def may_grow(self, text: str, start: int) -> bool:
        """Returns True if the text from there may still become a longer literal."""
        num_chars = len(text) - start
        return num_chars < self._longest and any(
            len(literal) > num_chars and literal.startswith(text[start:]) for literal in self._literals
        )


class TextReader:
    __slots__ = ("_at", "_is_ended", "_taken", "_text")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._is_ended = False
        self._taken: list[str] = []

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        self._is_ended = True

    @property
    def num_unread(self) -> int:
        return len(self._text) - self._at

    def mark(self) -> None:
        """Settle the text that was read so far: `taken` begins here."""
        self._taken.clear()

    @property
    def taken(self) -> str:
        """The text that was read since the mark."""
        return "".join(self._taken)

    def take(self, literal: str) -> str:
        """Read a literal that is known to come next."""
        return self._advance(self._at + len(literal))

    def peek(self) -> Reading[str]:
        """Returns the next character; "" at the end."""
        while self._at == len(self._text):
            if self._is_ended:
                return ""
            yield
        return self._text[self._at]

    def next_of(self, *literals: str) -> Reading[str]:
        """Returns the literal that comes next, the longest if several; "" if none does."""
        wanted = sorted(filter(None, literals), key=len, reverse=True)
        while True:
            num_unread = len(self._text) - self._at
            for literal in wanted:
                if self._text.startswith(literal, self._at):
                    return literal
                if num_unread < len(literal) and not self._is_ended and literal.startswith(self._text[self._at :]):
                    break
            else:
                return ""
            yield

    def take_some(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read the characters that are there and match a pattern of single characters, repeated. Returns "" where the
        next character does not match, and at the end."""
        yield from self.peek()
        found = pattern.match(self._text, self._at)
        return self._advance(found.end()) if found else ""

    def take_all(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read while characters match, as `take_some`, up to the first that does not."""
        parts: list[str] = []
        while part := (yield from self.take_some(pattern)):
            parts.append(part)
        return "".join(parts)

    def peek_past_space(self) -> Reading[str]:
        yield from self.take_all(SPACE)
        return (yield from self.peek())

    def expect(self, literal: str) -> Reading[None]:
        """Read white space and the literal, or raise NoCall."""
        yield from self.take_all(SPACE)
        if not (yield from self.next_of(literal)):
            raise NoCall
        self.take(literal)

    def some(self, stops: Stops) -> Reading[tuple[str, str | None]]:
        """Read up to the next stop, or the text that certainly has none. Returns the text and the stop, which is not
        read; "" at the end; None where more may come."""
        while True:
            found = stops.pattern.search(self._text, self._at)
            start = found.start() if found is not None else len(self._text)
            if self._is_ended:
                return self._advance(start), found.group() if found is not None else ""
            certain = min(start, stops.undecided_from(self._text, self._at))
            if found is not None and certain == start and not stops.may_grow(self._text, start):
                return self._advance(start), found.group()
            if certain > self._at:
                return self._advance(certain), None
            yield

    def up_to(self, stops: Stops, max_chars: int) -> Reading[tuple[str, str]]:
        """Read up to the next stop. Raises NoCall if it does not come within some `max_chars`."""
        parts: list[str] = []
        num_chars, stop = 0, None
        while stop is None:
            text, stop = yield from self.some(stops)
            parts.append(text)
            num_chars += len(text)
            if num_chars > max_chars:
                raise NoCall
        if not stop:
            raise NoCall
        return "".join(parts), stop

    def _advance(self, to: int) -> str:
        text = self._text[self._at : to]
        self._at = to
        if text:
            self._taken.append(text)
        return text


@dataclass(frozen=True, slots=True)
class StopStep:
    """A step of matching. `text` may be reported now. `matched`: the stop string that ended the stream; nothing follows
    it."""

    text: str
    matched: str | None = None


class StopText:
    """The matcher of stop strings of one sequence: `feed` takes decoded text, `flush` ends it. Not thread-safe."""

    __slots__ = ("_held", "_stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = Stops(stops)
        self._held = ""

    def feed(self, text: str) -> StopStep:
        """Adds text; returns the decided part. The earliest match wins, and the longer one where two start together."""
        self._held += text
        return self._decided(self._stops.undecided_from(self._held, 0))

    def flush(self) -> StopStep:
        """Ends the stream and returns the held text, cut at a complete stop string."""
        return self._decided(None)

    def _decided(self, undecided_from: int | None) -> StopStep:
        """Returns the text before `undecided_from`; all of it at the end of the stream."""
        held, found, is_ended = self._held, self._stops.pattern.search(self._held), undecided_from is None
        end = len(held) if undecided_from is None else undecided_from
        start = found.start() if found is not None else end
        if found is not None and (is_ended or (start <= end and not self._stops.may_grow(held, start))):
            self._held = ""
            return StopStep(held[:start], found[0])
        end = min(start, end)
        self._held = held[end:]
        return StopStep(held[:end])
