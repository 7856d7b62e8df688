"""Declarations of the text that a family of models writes around its reasoning, text and tool calls.

For reading, sections and formats:

    section.open  call call ...  section.close     calls in a section
    format.open  ...  format.close                 calls that open themselves, in a section or without one
    {...} or [...]                                 bare: nothing but the answer's beginning marks them

For grammars that constrain a model to its own form of calls, a name with arguments behind it:

    first  (mark opening NAME before_arguments ARGUMENTS closing)  between  (mark ...)  last

    Hermes    `<tool_call>` `\\n{"name": "` NAME `", "arguments": ` ARGUMENTS `}\\n</tool_call>`

Arguments are one JSON object, or parameters one by one:

    open  KEY  before_value  VALUE  close   between   open ...

    Qwen      `\\n<parameter=` KEY `>\\n` VALUE `\\n</parameter>`

Special tokens are spelled in these texts; a tokenizer says which of them it has.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar, cast

from domain.output.call_format import CallFormat
from domain.output.reader import FIRST_MARK, LAST_MARK


class Values(Enum):
    """How a parameter's value is written. RAW: a string, which the schema tells, as it is, all else as JSON. JSON: with
    Python's words for constants that stand alone. LITERAL: as JSON, with bare keys, and strings between quotes without
    escapes."""

    RAW = "raw"
    JSON = "json"
    LITERAL = "literal"


@dataclass(frozen=True, slots=True)
class WrittenParameters:
    """`before_string`, `after_string`: in place of `before_value` and `close` around a raw string. `stop`: what a raw
    string may not hold, because it ends there. `quote`: around literal strings."""

    values: Values
    before_value: str
    open: str = ""
    close: str = ""
    between: str = ""
    before_string: str = ""
    after_string: str = ""
    stop: str = ""
    quote: str = ""


@dataclass(frozen=True, slots=True)
class WrittenCalls:
    """`number`: what stands between the name and a number that counts the calls; "" where nothing counts them.
    `parameters`: None for arguments that are one JSON object.

    `needs`: a special token without which a tokenizer's models do not write so. `is_marked`: a call's first piece tells
    it from any other answer. `among_text`: and from free text around it, and the models write so by themselves.
    """

    before_arguments: str
    closing: str = ""
    opening: str = ""
    mark: str = ""
    first: str = ""
    between: str = ""
    last: str = ""
    number: str = ""
    parameters: WrittenParameters | None = None
    needs: str = ""
    is_marked: bool = True
    among_text: bool = True


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Section:
    """`open` is "" where calls only open themselves, `close` where nothing ends the section."""

    open: str
    close: str
    formats: tuple[CallFormat, ...]


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """`dropped`: tags that the family puts around the rest of its answer."""

    open: str
    close: str
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Channels:
    """The answer as messages with headers, as harmony has it: `start` role `channel` name `message` content `end`."""

    start: str
    channel: str
    message: str
    ends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """`found_by`: any of these sets of texts, all in a chat template or among the added tokens, tells the family.
    `id_chars`: how long an id of a call may be. `shows`: what to print of the calls' form. `writes`: how a grammar has
    it write them, the first that fits the tokenizer; the last fits any."""

    name: str
    shows: str
    found_by: tuple[tuple[str, ...], ...] = ()
    sections: tuple[Section, ...] = ()
    bare: tuple[CallFormat, ...] = ()
    channels: Channels | None = None
    id_chars: int | None = None
    writes: tuple[WrittenCalls, ...] = ()

    @property
    def openers(self) -> dict[str, Section]:
        """The sections by all that opens them: their own mark, and those of calls that may stand without it."""
        found = {one.open: section for section in self.sections for one in section.formats if one.open}
        return found | {section.open: section for section in self.sections if section.open}


def with_marks(value: T, marks: Mapping[str, str]) -> T:
    """The declaration with special tokens, `marks` by spelling, as the characters that stand for them."""
    if isinstance(value, str):
        for token in sorted(marks, key=len, reverse=True):
            value = cast(T, cast(str, value).replace(token, marks[token]))
        return value
    if isinstance(value, tuple):
        return cast(T, tuple(with_marks(item, marks) for item in cast("tuple[Any, ...]", value)))
    if is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: with_marks(getattr(value, field.name), marks) for field in fields(value)}
        return cast(T, replace(cast(Any, value), **changed))
    return value


def markers_in(value: object) -> Iterator[str]:
    """All the text in a declaration that may hold a special token."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in cast("tuple[object, ...]", value):
            yield from markers_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.name not in _PLAIN_FIELDS:
                yield from markers_in(getattr(value, field.name))


_PLAIN_FIELDS = frozenset({"name", "shows", "found_by", "writes"})
_LIKE_MARKUP = re.compile(r"\W")


def marks_for(value: object, special_tokens: Iterable[str]) -> dict[str, str]:
    """A character for each special token that the declaration names."""
    texts = list(markers_in(value))
    named = [token for token in special_tokens if _LIKE_MARKUP.search(token) and any(token in text for text in texts)]
    codes = range(ord(FIRST_MARK), ord(LAST_MARK) + 1)
    return dict(zip(named, map(chr, codes), strict=False))
