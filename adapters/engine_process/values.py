"""Values of the engine port as bytes, and back: MessagePack, by way of msgspec, which checks every type.

A value of one known type goes as it is. Where several types may come, items of a batch and telemetry events, the name
of its class goes with it. Prompts go as one row of bytes: a list of 200,000 integers costs twice as much.
"""

import struct
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar, cast, get_args

import msgspec

from application.events import Event
from application.ports.engine import EngineItem, Submission
from domain import errors
from domain.errors import DomainError, ServerUnavailable
from domain.prompt_content import Media, PromptContent, compacted

T = TypeVar("T")

Named: TypeAlias = tuple[str, Any]
"""A value with the name of its class before it; read as msgspec.Raw."""

_NARROW, _WIDE = "I", "Q"
_NOTHING = PromptContent((), ())

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_CLASSES: dict[str, type] = {kind.__name__: kind for kind in (*get_args(EngineItem), *get_args(Event))}


def encoded(value: object) -> bytes:
    return _encoder.encode(value)


def decoded(data: "bytes | msgspec.Raw", kind: Any) -> Any:
    """Raises msgspec.MsgspecError for anything but a value of this type."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return decoder.decode(data)


def named(value: object) -> Named:
    return type(value).__name__, value


def from_named(name: str, raw: msgspec.Raw) -> Any:
    """Raises KeyError for a class that is none of the port's, and as `decoded`."""
    return decoded(raw, _CLASSES[name])


class PackedIds(msgspec.Struct, array_like=True, frozen=True):
    """A row of token ids. `kind`: struct's name for the integers. Making them is what unpacking takes time for."""

    kind: str
    data: bytes

    @classmethod
    def of(cls, ids: tuple[int, ...]) -> "PackedIds":
        # A Struct of its own: `struct.pack` would copy the row into its arguments.
        try:
            return cls(_NARROW, struct.Struct(f"={len(ids)}{_NARROW}").pack(*ids))
        except struct.error:
            return cls(_WIDE, struct.Struct(f"={len(ids)}{_WIDE}").pack(*ids))

    def unpacked(self) -> tuple[int, ...]:
        num_ids = len(self.data) // struct.calcsize(f"={self.kind}")
        return compacted(struct.unpack(f"={num_ids}{self.kind}", self.data))


class PackedSubmission(msgspec.Struct, frozen=True):
    """`key_ids`: None where they are the token ids."""

    submission: Submission
    token_ids: PackedIds
    key_ids: PackedIds | None
    media: tuple[Media, ...]

    @classmethod
    def of(cls, submission: Submission) -> "PackedSubmission":
        prompt = submission.prompt
        content = prompt.content
        bare = replace(submission, prompt=replace(prompt, content=_NOTHING))
        is_text = content.key_ids is content.token_ids or content.key_ids == content.token_ids
        key_ids = None if is_text else PackedIds.of(content.key_ids)
        return cls(bare, PackedIds.of(content.token_ids), key_ids, content.media)

    def unpacked(self) -> Submission:
        token_ids = self.token_ids.unpacked()
        key_ids = token_ids if self.key_ids is None else self.key_ids.unpacked()
        content = PromptContent(token_ids, key_ids, self.media)
        return replace(self.submission, prompt=replace(self.submission.prompt, content=content))


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


__all__ = ("Named", "PackedSubmission", "SentError", "decoded", "encoded", "from_named", "named")
