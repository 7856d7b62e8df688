"""Fields that would change the answer and that a dialect does not support: refused by name, never silently ignored.

Each with its neutral values, which clients send as defaults and which change nothing; null is always neutral. Every
other unknown field is ignored: clients send many that are harmless.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from domain.errors import InvalidRequest

RefusedFields: TypeAlias = Mapping[str, tuple[Any, ...]]


def refuse_fields(refused: RefusedFields) -> Callable[[bytes], None]:
    """A check for raw bodies that decode as JSON objects. It raises InvalidRequest, naming the first such field."""
    present = msgspec.defstruct("RefusedFields", [(name, Any, None) for name in sorted(refused)], kw_only=True)
    decoder = msgspec.json.Decoder(present)

    def check(body: bytes) -> None:
        fields = msgspec.structs.asdict(decoder.decode(body))
        for name, value in fields.items():
            if value is not None and value not in refused[name]:
                raise InvalidRequest(f"{name} is not supported by this server; leave it out", param=name)

    return check


__all__ = ("RefusedFields", "refuse_fields")
