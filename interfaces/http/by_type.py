"""Objects told apart by their `type`, of which a dialect knows some: strict about those, silent about the others.

New kinds of content appear with every release of a client, in histories that it cannot take back, so an unknown one is
never an error. msgspec's tagged unions refuse it.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from domain.errors import InvalidRequest
from interfaces.http.json_body import refusal

StructT = TypeVar("StructT", bound=Struct)


def by_type(raw: Mapping[str, Any], kinds: Mapping[str, type[StructT]], path: str) -> StructT | None:
    """The object as what its `type` says; None for a type that is not among `kinds`. Raises InvalidRequest, naming the
    field below `path`."""
    name = raw.get("type")
    if not isinstance(name, str):
        raise InvalidRequest(f"{path}.type is missing", param=f"{path}.type")
    kind = kinds.get(name)
    return None if kind is None else converted(raw, kind, path)


def converted(raw: Mapping[str, Any], kind: type[StructT], path: str) -> StructT:
    """Raises InvalidRequest, naming the field below `path`."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise refusal(error, path) from None


__all__ = ("by_type", "converted")
