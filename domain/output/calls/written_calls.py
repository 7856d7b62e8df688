"""How a family's calls are written where a grammar holds a model to them: a name, and arguments behind it.

    first  (mark opening NAME before_arguments ARGUMENTS closing)  between  (mark ...)  last

    Hermes    `<tool_call>` `\\n{"name": "` NAME `", "arguments": ` ARGUMENTS `}\\n</tool_call>`

Arguments are one JSON object, or parameters one by one:

    open  KEY  before_value  VALUE  close   between   open ...

    Qwen      `\\n<parameter=` KEY `>\\n` VALUE `\\n</parameter>`

Texts in which special tokens are spelled; which of those a tokenizer has, it says itself.
"""

from dataclasses import dataclass
from enum import Enum


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
