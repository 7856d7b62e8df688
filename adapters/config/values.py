"""Values as written in TOML, in environment variables and on command lines, turned into what the settings hold."""

import os
from typing import Any, cast

from domain.byte_size import ByteSize
from domain.duration import Duration
from domain.errors import InvalidRequest

_TRUTH = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}
_AUTO = "auto"
"""A size that is chosen where none is set may be asked for by this name."""

_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    ByteSize: "a size such as 16GiB, 500MB, 70% or a number of bytes",
    Duration: "a duration such as 30d or 12h",
    tuple: "a list of texts",
}


def from_typed(value: Any, type: type, is_optional: bool) -> object:
    """A value that has a type already (TOML, flags). Raises ValueError, saying what it must be."""
    if is_optional and (value is None or (type is ByteSize and value == _AUTO)):
        return None
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if type is ByteSize and is_number and value >= 0:
        return ByteSize(num_bytes=value)
    if type in (ByteSize, Duration) and isinstance(value, str):
        return _parsed(value, type)
    if type is float and is_number:
        return float(value)
    if type is tuple and isinstance(value, list | tuple):
        parts = cast("list[object]", value)
        if all(isinstance(part, str) for part in parts):
            return tuple(parts)
    elif isinstance(value, type) and (is_number or not isinstance(value, int) or type is bool):
        return value
    raise ValueError(f"must be {_NAMES[type]}")


def from_text(text: str, type: type, is_optional: bool, separator: str = os.pathsep) -> object:
    """A value written as text. Empty means none where none is allowed; `separator`: between the items of a list."""
    if is_optional and not text:
        return None
    if type is tuple:
        return tuple(stripped for part in text.split(separator) if (stripped := part.strip()))
    try:
        if type is bool:
            return _TRUTH[text.strip().lower()]
        return from_typed(type(text) if type in (int, float) else text, type, is_optional)
    except (KeyError, ValueError) as error:
        raise ValueError(f"must be {_NAMES[type]}" if type in (bool, int, float) else str(error)) from None


def shown(value: object) -> object:
    """The TOML-like value to show people: what could be written to get it."""
    if isinstance(value, ByteSize | Duration):
        return str(value)
    return list(cast(tuple[str, ...], value)) if isinstance(value, tuple) else value


def _parsed(text: str, type: type) -> object:
    try:
        return ByteSize.parse(text) if type is ByteSize else Duration.parse(text)
    except InvalidRequest as error:
        raise ValueError(
            f"must be a size: {error.message}" if type is ByteSize else f"must be {_NAMES[type]}"
        ) from None
