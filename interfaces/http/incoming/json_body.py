"""Request bodies: JSON bytes straight into a msgspec Struct, strictly, with errors that name the field.

Unknown fields are ignored without being decoded: clients send many that are harmless. Those that would change the
answer are declared as refused (`fields/parameters`).

The values of a body are counted before it is decoded: each byte of JSON could become 46 bytes of memory.
"""

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
from litestar.dto import AbstractDTO
from litestar.dto.data_structures import DTOFieldDefinition
from litestar.typing import FieldDefinition
from msgspec import Struct

from domain.errors import InvalidRequest
from domain.half_pairs import without_halves
from domain.printable import printable
from domain.request.chat import ChatMessage

T = TypeVar("T")
StructT = TypeVar("StructT", bound=Struct)

MAX_REASON_CHARS = 300
"""Length of the reason in an error about a value; it may quote the value."""

MAX_NODES = 2**20
"""Bound on `num_nodes` of one body. A conversation of 2,000 turns with 200 tools has a third of it; a prompt of a
million token ids fits."""

CONTAINER_NODES = 16
"""Weight of an object or array, which takes some 100 to 200 bytes of memory, against that of a string or number."""

_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING = re.compile(r"Object missing required field `(.+)`")


def num_nodes(text: bytes) -> int:
    """Weighted number of values in JSON, found by counting bytes: what decoding it costs in memory and time. Never too
    low. 16 MiB take some 20 ms, and up to 200 ms where strings look like JSON themselves and have to be left out."""
    num = _counted(text)
    if num <= MAX_NODES:
        return num
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    num_strings = plain.count(b'"') // 2
    if num_strings > MAX_NODES:
        return num
    return num_strings + _counted(b"".join(plain.split(b'"')[::2]))


def check_nodes(text: bytes, field: str | None = None) -> None:
    """Raises InvalidRequest for JSON of more than MAX_NODES: each byte of it could become 46 bytes of memory. `field`:
    the name of the text, if it is not the whole body."""
    if len(text) * CONTAINER_NODES > MAX_NODES and num_nodes(text) > MAX_NODES:
        raise InvalidRequest(
            f"{field or 'the body'} holds more than {MAX_NODES} values (an object or array counts as"
            f" {CONTAINER_NODES}); send less at once",
            param=field,
        )


def check_arguments(messages: Iterable[ChatMessage], field: str) -> None:
    """Raises InvalidRequest if the arguments of all tool calls, JSON inside of strings, hold too many values."""
    num = sum(num_nodes(call.arguments.encode()) for message in messages for call in message.tool_calls)
    if num > MAX_NODES:
        raise InvalidRequest(f"{field}: the arguments of tool calls hold more than {MAX_NODES} values", param=field)


def _counted(text: bytes) -> int:
    num_containers = text.count(b"[") + text.count(b"{")
    return CONTAINER_NODES * num_containers + text.count(b'"') // 2 + text.count(b",")


def read_body(raw: bytes, decode: Callable[[bytes], T]) -> T:
    """Returns a whole body, checked and decoded. Raises InvalidRequest."""
    check_nodes(raw)
    try:
        whole = without_halves(raw)
    except ValueError as error:
        raise InvalidRequest(f"the body {error}") from None
    return decode(whole)


def decode_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decodes a whole body. Raises InvalidRequest; `param` is the path of the offending field, as
    `messages[0].role`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise refusal(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None


def refusal(error: msgspec.ValidationError, at: str = "") -> InvalidRequest:
    """msgspec's sentence as an error that names the field. `at`: the path of what was decoded, if it was a part."""
    text = str(error)
    found = _PATH.search(text)
    param = ".".join(name for name in (at, found[1].replace("[...]", "") if found else "") if name)
    message = _PATH.sub("", text)
    if (missing := _MISSING.fullmatch(message)) is not None:
        param = f"{param}.{missing[1]}" if param else missing[1]
        return InvalidRequest(f"{param} is missing", param=param)
    reason = printable(message.replace("`", "'"), MAX_REASON_CHARS)
    return InvalidRequest(f"{param or 'the body'}: {reason}", param=param or None)


def body_decoder(model: type[T]) -> Callable[[bytes], T]:
    """Returns a decoder of bodies. It raises InvalidRequest."""
    return partial(decode_json, decoder=msgspec.json.Decoder(model))


def body_dto(annotation: Any) -> type[AbstractDTO[Any]]:
    """A Litestar DTO that hands a route the bytes of its body. `annotation`: their type in the OpenAPI document."""
    return type("BodyDTO", (_BodyDTO,), {"model_type": annotation})


class _BodyDTO(AbstractDTO[Any]):
    def decode_bytes(self, value: bytes) -> bytes:
        return value

    @classmethod
    def create_for_field_definition(cls, *args: Any, **kwargs: Any) -> None:
        """Prepares nothing: there is no transfer model."""

    @classmethod
    def create_openapi_schema(cls, field_definition: FieldDefinition, handler_id: str, schema_creator: Any) -> Any:
        return schema_creator.for_field_definition(FieldDefinition.from_annotation(cls.model_type))

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Generator[DTOFieldDefinition, None, None]:
        yield from ()

    @classmethod
    def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
        return False


def by_type(raw: Mapping[str, Any], kinds: Mapping[str, type[StructT]], path: str) -> StructT | None:
    """The object as the kind that its `type` names; None for a type that is not among `kinds`: new kinds of content
    appear with every release of a client, in histories that it cannot take back, and msgspec's tagged unions refuse
    them. Raises InvalidRequest, naming the field below `path`."""
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
