"""Cairn's own answers as its clients in this repository read them: back into the bodies they were made of."""

from typing import TypeVar

import msgspec

_Body = TypeVar("_Body")


def body_of(answer: object, body: type[_Body]) -> _Body:
    """Decoded JSON as a body; fields that are not known are left out. Raises ValueError that says what is wrong."""
    return msgspec.convert(answer, body)


def data_of(body: msgspec.Struct) -> object:
    """A body as decoded JSON."""
    return msgspec.to_builtins(body)
