"""Values as written in TOML, in environment variables and on command lines, turned into what the settings hold."""

import os
from collections.abc import Callable, Mapping
from typing import cast

from domain.byte_size import ByteSize
from domain.duration import Duration
from domain.errors import InvalidRequest

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})
_AUTO = "auto"
"""A size that is chosen where none is set may be asked for by this name."""


def from_typed(value: object, type: type, is_optional: bool) -> object:
    """A value that has a type already (TOML, flags). Raises ValueError, saying what it must be."""
    if is_optional and (value is None or (type is ByteSize and value == _AUTO)):
        return None
    return _FROM_TYPED[type](value)


def from_text(text: str, type: type, is_optional: bool, separator: str = os.pathsep) -> object:
    """A value written as text. Empty means none where none is allowed; `separator`: between the items of a list."""
    if is_optional and (not text or (type is ByteSize and text == _AUTO)):
        return None
    if type is tuple:
        return tuple(stripped for part in text.split(separator) if (stripped := part.strip()))
    return _FROM_TEXT[type](text)


def shown(value: object) -> object:
    """The TOML-like value to show people: what could be written to get it."""
    if isinstance(value, ByteSize | Duration):
        return str(value)
    return list(cast(tuple[str, ...], value)) if isinstance(value, tuple) else value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    return float(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _size(value: object) -> ByteSize:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return ByteSize(num_bytes=value)
    if not isinstance(value, str):
        raise ValueError("must be a size such as 16GiB, 500MB, 70% or a number of bytes")
    try:
        return ByteSize.parse(value)
    except InvalidRequest as error:
        raise ValueError(f"must be a size: {error.message}") from None


def _duration(value: object) -> Duration:
    if not isinstance(value, str):
        raise ValueError("must be a duration such as 30d or 12h")
    try:
        return Duration.parse(value)
    except InvalidRequest:
        raise ValueError("must be a duration such as 30d or 12h") from None


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of texts")
    parts = cast(list[object], value)
    if not all(isinstance(part, str) for part in parts):
        raise ValueError("must be a list of texts")
    return tuple(cast(list[str], parts))


def _whole_text(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _number_text(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def _truth_text(text: str) -> bool:
    word = text.strip().lower()
    if word not in _YES | _NO:
        raise ValueError("must be true or false")
    return word in _YES


_FROM_TYPED: Mapping[type, Callable[[object], object]] = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _truth,
    ByteSize: _size,
    Duration: _duration,
    tuple: _texts,
}
_FROM_TEXT: Mapping[type, Callable[[str], object]] = {
    str: _text,
    int: _whole_text,
    float: _number_text,
    bool: _truth_text,
    ByteSize: _size,
    Duration: _duration,
}

__all__ = ("from_text", "from_typed", "shown")
