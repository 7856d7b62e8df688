"""The support of each parameter of a request, declared beside its field:

    temperature: Annotated[float | None, supported("0 to 10")] = None

The documentation's tables and the refusals are made of these declarations.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, cast, get_type_hints

import msgspec
from msgspec import Meta, Struct

from domain.errors import InvalidRequest

_SUPPORT, _NEUTRAL = "support", "neutral"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A declared parameter. `support`: `supported`, `mapped`, `ignored` or `refused`. `attribute`: the field's name in
    the Struct."""

    name: str
    attribute: str
    support: str
    note: str
    neutral: tuple[Any, ...]


def supported(note: str) -> Meta:
    """The field has the dialect's effect."""
    return _declared("supported", note)


def mapped(note: str) -> Meta:
    """The field has an effect near to the dialect's."""
    return _declared("mapped", note)


def ignored(note: str) -> Meta:
    """The field has no effect."""
    return _declared("ignored", note)


def refused(note: str, *neutral: Any) -> Meta:
    """The field would change the answer and is not supported. `neutral`: values that request nothing; null always
    is."""
    return _declared("refused", note, neutral)


@cache
def parameters(body: type[Struct]) -> tuple[Parameter, ...]:
    """In the order of the fields. Every field must be declared."""
    hints = get_type_hints(body, include_extras=True)
    return tuple(_parameter(field, hints[field.name]) for field in msgspec.structs.fields(body))


def without_effect(body: object, path: str = "") -> list[str]:
    """Returns the names of the parameters that are ignored and were sent, also those in `options` of the body."""
    ignored = [one for one in parameters(cast("type[Struct]", type(body))) if one.support == "ignored"]
    found = [f"{path}{one.name}" for one in ignored if getattr(body, one.attribute) is not None]
    options = getattr(body, "options", None)
    return found + (without_effect(options, "options.") if isinstance(options, Struct) else [])


def refuse_unsupported(body: Struct) -> None:
    """Raises InvalidRequest, naming the first parameter that is refused and says something."""
    for parameter in parameters(type(body)):
        value = getattr(body, parameter.attribute)
        if parameter.support == "refused" and value is not None and value not in parameter.neutral:
            name = parameter.name
            message = f"{name} is not supported by this server ({parameter.note}); leave it out"
            raise InvalidRequest(message, param=name)


def _declared(support: str, note: str, neutral: tuple[Any, ...] = ()) -> Meta:
    return Meta(description=note, extra={_SUPPORT: support, _NEUTRAL: neutral})


def _parameter(field: msgspec.structs.FieldInfo, hint: Any) -> Parameter:
    meta = next(entry for entry in hint.__metadata__ if isinstance(entry, Meta))
    extra = meta.extra or {}
    return Parameter(field.encode_name, field.name, extra[_SUPPORT], meta.description or "", extra[_NEUTRAL])
