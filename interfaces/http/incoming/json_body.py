"""Request bodies: JSON bytes straight into a msgspec Struct, strictly, with errors that name the field.

Fields that would change the answer and that a dialect does not support are refused by name, never silently ignored:
each with its neutral values, which clients send as defaults and which change nothing; null is always neutral. Every
other unknown field is ignored, without being decoded: clients send many that are harmless.
"""

import asyncio
import re
from collections.abc import Callable, Generator, Mapping
from typing import Any, ClassVar, TypeAlias, TypeVar

import msgspec
from litestar.connection import Request
from litestar.dto import AbstractDTO
from litestar.dto.data_structures import DTOFieldDefinition
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send
from litestar.typing import FieldDefinition
from msgspec import Raw, Struct

from domain.errors import InvalidRequest
from domain.shown import shown
from interfaces.http.incoming.body_limits import check_nodes

T = TypeVar("T")
StructT = TypeVar("StructT", bound=Struct)

MAX_REASON_CHARS = 300
"""Length of the reason in an error about a value; it may quote the value."""

LARGE_BYTES = 256 * 2**10
"""A larger body is decoded in a worker, while the event loop goes on."""

_MAX_NEUTRAL_BYTES = 64
_DECODED = "cairn_decoded_body"

RefusedFields: TypeAlias = Mapping[str, tuple[Any, ...]]

_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING = re.compile(r"Object missing required field `(.+)`")


def decode_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode a whole body. Raises InvalidRequest; `param` is the path of the offending field, as `messages[0].role`."""
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
    reason = shown(message.replace("`", "'"), MAX_REASON_CHARS)
    return InvalidRequest(f"{param or 'the body'}: {reason}", param=param or None)


def body_decoder(model: type[T], refused: RefusedFields | None = None) -> Callable[[bytes], T]:
    """Decodes bodies into `model`. `refused`: fields that `model` does not have and that are an InvalidRequest."""
    decoder = msgspec.json.Decoder(model)
    check = _refusing(refused or {})

    def decode(body: bytes) -> T:
        decoded = decode_json(body, decoder)
        check(body)
        return decoded

    return decode


def _refusing(refused: RefusedFields) -> Callable[[bytes], None]:
    """A check for raw bodies that decode as JSON objects. It raises InvalidRequest, naming the first refused field."""
    present = msgspec.defstruct("RefusedFields", [(name, Raw, Raw(b"null")) for name in sorted(refused)], kw_only=True)
    decoder = msgspec.json.Decoder(present)

    def check(body: bytes) -> None:
        for name, raw in msgspec.structs.asdict(decoder.decode(body)).items():
            value = msgspec.json.decode(raw) if len(bytes(raw)) <= _MAX_NEUTRAL_BYTES else ...
            if value is not None and value not in refused[name]:
                raise InvalidRequest(f"{name} is not supported by this server; leave it out", param=name)

    return check


class JsonBody(AbstractDTO[Any]):
    """A Litestar DTO. `decoder` makes a body of bytes."""

    decoder: ClassVar[Callable[[bytes], Any]]

    @classmethod
    def decode(cls, raw: bytes) -> Any:
        """Any thread. Raises InvalidRequest."""
        check_nodes(raw)
        return cls.decoder(raw)

    def decode_bytes(self, value: bytes) -> Any:
        scope: Scope = self.asgi_connection.scope  # pyright: ignore[reportUnknownMemberType]
        state: dict[str, Any] = scope["state"]
        return state.pop(_DECODED) if _DECODED in state else self.decode(value)

    @classmethod
    def create_for_field_definition(cls, *args: Any, **kwargs: Any) -> None:
        """Nothing to prepare: there is no transfer model."""

    @classmethod
    def create_openapi_schema(cls, field_definition: FieldDefinition, handler_id: str, schema_creator: Any) -> Any:
        return schema_creator.for_field_definition(FieldDefinition.from_annotation(cls.model_type))

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Generator[DTOFieldDefinition, None, None]:
        yield from ()

    @classmethod
    def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
        return False


def json_body(model: type[T]) -> type[JsonBody]:
    """A Litestar DTO that decodes bodies into `model`."""
    return decoded_body(model, body_decoder(model))


def decoded_body(annotation: Any, decode: Callable[[bytes], object]) -> type[JsonBody]:
    """A Litestar DTO that decodes bodies by a function. `annotation`: their type in the OpenAPI document."""
    return type("JsonBody", (JsonBody,), {"model_type": annotation, "decoder": staticmethod(decode)})


class LargeBodies(ASGIMiddleware):
    """Reads large bodies and decodes them in a worker, before their route is reached. Behind authentication.

    The guards of a route come before its body, so routes with guards are left out: none of them takes much.
    """

    scopes = (ScopeType.HTTP,)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        handler: Any = scope["route_handler"]
        dto: type[Any] | None = handler.resolve_data_dto()
        if dto is not None and issubclass(dto, JsonBody) and not handler.resolve_guards():
            raw = await Request[Any, Any, Any](scope, receive, send).body()  # which the route's own request finds
            if len(raw) > LARGE_BYTES:
                scope["state"][_DECODED] = await asyncio.to_thread(dto.decode, raw)
        await next_app(scope, receive, send)


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
