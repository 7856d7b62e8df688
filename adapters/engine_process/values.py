"""Values of the engine port as bytes, and back: MessagePack, by way of msgspec, which checks every type.

A value of one known type goes as it is. Where several types may come, items of a batch and telemetry events, the name
of its class goes with it. A row of ids goes as its bytes, as it lies.
"""

from typing import Any, TypeAlias, TypeVar, cast, get_args

import msgspec

from application.events import Event
from application.ports.engine import EngineItem
from domain import errors
from domain.errors import DomainError, ServerUnavailable
from domain.id_row import IdRow

T = TypeVar("T")

Named: TypeAlias = tuple[str, Any]
"""A value with the name of its class before it; read as msgspec.Raw."""


def _plain(value: object) -> bytes:
    if isinstance(value, IdRow):
        return value.to_bytes()
    raise NotImplementedError(f"the port has no {type(value).__name__}")


def _read(kind: type, plain: object) -> IdRow:
    if kind is IdRow and isinstance(plain, bytes):
        return IdRow.of_bytes(plain)
    raise TypeError(f"a {type(plain).__name__} is no {kind.__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_CLASSES: dict[str, type] = {kind.__name__: kind for kind in (*get_args(EngineItem), *get_args(Event))}


def encoded(value: object) -> bytes:
    return _encoder.encode(value)


def decoded(data: "bytes | msgspec.Raw", kind: Any) -> Any:
    """Raises msgspec.MsgspecError for anything but a value of this type."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind, dec_hook=_read)
    return decoder.decode(data)


def named(value: object) -> Named:
    return type(value).__name__, value


def from_named(name: str, raw: msgspec.Raw) -> Any:
    """Raises KeyError for a class that is none of the port's, and as `decoded`."""
    return decoded(raw, _CLASSES[name])


class SentError(msgspec.Struct, frozen=True):
    """A DomainError with its class and numbers, which an EngineError leaves out."""

    kind: str
    message: str
    param: str | None
    numbers: dict[str, int | float]

    @classmethod
    def of(cls, error: DomainError) -> "SentError":
        numbers = {name: value for name, value in vars(error).items() if isinstance(value, int | float)}
        return cls(type(error).__name__, error.message, error.param, numbers)

    def to_error(self) -> DomainError:
        kind = getattr(errors, self.kind, None)
        known = isinstance(kind, type) and issubclass(kind, DomainError)
        made = cast(type[DomainError], kind)(self.message) if known else ServerUnavailable(self.message)
        made.param = self.param
        for name, value in self.numbers.items():
            setattr(made, name, value)
        return made


__all__ = ("Named", "SentError", "decoded", "encoded", "from_named", "named")
