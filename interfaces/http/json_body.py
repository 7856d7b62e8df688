"""Request bodies: JSON bytes straight into a msgspec Struct, strictly, with errors that name the field."""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from litestar.dto import AbstractDTO
from litestar.dto.data_structures import DTOFieldDefinition
from litestar.typing import FieldDefinition

from domain.errors import InvalidRequest
from domain.shown import shown
from interfaces.http.refused_fields import RefusedFields, refuse_fields

T = TypeVar("T")

MAX_REASON_CHARS = 300
"""Of what is said about a value; it may quote the value."""

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
    check = refuse_fields(refused or {})

    def decode(body: bytes) -> T:
        decoded = decode_json(body, decoder)
        check(body)
        return decoded

    return decode


def json_body(model: type[T]) -> "type[AbstractDTO[T]]":
    """A Litestar DTO that decodes bodies into `model`."""
    return decoded_body(model, body_decoder(model))


def decoded_body(annotation: Any, decode: Callable[[bytes], T]) -> "type[AbstractDTO[T]]":
    """A Litestar DTO that decodes bodies by a function. `annotation`: what the OpenAPI document says they are."""

    class JsonBody(AbstractDTO[Any]):
        model_type = annotation

        def decode_bytes(self, value: bytes) -> T:
            return decode(value)

        @classmethod
        def create_for_field_definition(cls, *args: Any, **kwargs: Any) -> None:
            """Nothing to prepare: there is no transfer model."""

        @classmethod
        def create_openapi_schema(cls, field_definition: FieldDefinition, handler_id: str, schema_creator: Any) -> Any:
            return schema_creator.for_field_definition(FieldDefinition.from_annotation(annotation))

        @classmethod
        def generate_field_definitions(cls, model_type: type[Any]) -> Iterator[DTOFieldDefinition]:  # type: ignore[override]
            return iter(())

        @classmethod
        def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
            return False

    return JsonBody


__all__ = ("body_decoder", "decode_json", "decoded_body", "json_body", "refusal")
