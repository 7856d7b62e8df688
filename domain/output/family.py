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
    """The form of a parameter's value. RAW: strings (by the schema) as they are, other values as JSON. JSON: with
    Python's words for constants that stand alone. LITERAL: as JSON, with bare keys, and strings between quotes without
    escapes."""

    RAW = "raw"
    JSON = "json"
    LITERAL = "literal"


@dataclass(frozen=True, slots=True)
class WrittenParameters:
    """The texts around parameters. `before_string`, `after_string`: in place of `before_value` and `close` around a raw
    string. `stop`: a text that a raw string may not contain, because it ends there. `quote`: around literal strings."""

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
    """The texts around calls. `number`: between the name and a number that counts the calls; "" for no number.
    `parameters`: None for arguments that are one JSON object.

    `needs`: a special token without which a tokenizer's models do not write so. `is_marked`: a call's first piece
    distinguishes it from any other answer. `among_text`: also from free text around it, and models write it unasked.
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
    """A run of calls. `open` is "" where calls only open themselves, `close` where nothing ends the section."""

    open: str
    close: str
    formats: tuple[CallFormat, ...]


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags of reasoning. `dropped`: tags that the family writes around the rest of its answer."""

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
    """The declaration of a family. `shows`: the form of its calls, for people. `found_by`: sets of texts; a chat
    template or added tokens that have all texts of one set identify the family. `id_chars`: the length of a call's id.
    `writes`: the forms of calls in grammars, of which the first that fits the tokenizer counts; the last fits any."""

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
        """The sections by their opening marks: their own, and those of calls that may stand without it."""
        found = {one.open: section for section in self.sections for one in section.formats if one.open}
        return found | {section.open: section for section in self.sections if section.open}


def with_marks(value: T, marks: Mapping[str, str]) -> T:
    """Returns the declaration with special tokens replaced by their characters, `marks` by spelling."""
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
    """Yields all text in a declaration that may contain a special token."""
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
    """Returns a character for each special token that the declaration names."""
    texts = list(markers_in(value))
    named = [token for token in special_tokens if _LIKE_MARKUP.search(token) and any(token in text for text in texts)]
    codes = range(ord(FIRST_MARK), ord(LAST_MARK) + 1)
    return dict(zip(named, map(chr, codes), strict=False))
