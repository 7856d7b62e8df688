"""Fields that would change the answer and that a dialect does not support: refused by name, never silently ignored.

Each with its neutral values, which clients send as defaults and which change nothing; null is always neutral. Every
other unknown field is ignored: clients send many that are harmless.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from domain.errors import InvalidRequest

T = TypeVar("T")

RefusedFields: TypeAlias = Mapping[str, tuple[Any, ...]]


def refuse_fields(model: type[T], refused: RefusedFields) -> tuple[type[T], Callable[[T], None]]:
    """What bodies are to be decoded as, once, in place of `model`, which has none of these fields; and a check for what
    came of that, which raises InvalidRequest, naming the first such field."""
    if not refused:
        return model, lambda _decoded: None
    names = sorted(refused)
    fields = [(name, Any, None) for name in names]
    whole: Any = msgspec.defstruct(model.__name__, fields, bases=(cast("type[msgspec.Struct]", model),), kw_only=True)

    def check(decoded: T) -> None:
        for name in names:
            value = getattr(decoded, name)
            if value is not None and value not in refused[name]:
                raise InvalidRequest(f"{name} is not supported by this server; leave it out", param=name)

    return whole, check


__all__ = ("RefusedFields", "refuse_fields")
