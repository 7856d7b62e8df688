"""A body that is a chat or a text completion request, told apart by `messages` and `prompt`."""

from typing import TypeAlias

import msgspec
from litestar.dto import AbstractDTO
from msgspec import Raw, Struct

from domain.errors import InvalidRequest
from domain.request import GenerationRequest
from interfaces.http.json_body import decode_json, decoded_body
from interfaces.http.openai.chat import chat_requests
from interfaces.http.openai.chat_request import ChatCompletionRequest, wire_names
from interfaces.http.openai.completion_request import WIRE_NAMES, CompletionRequest, plain_prompts
from interfaces.http.openai.completions import completion_requests
from interfaces.http.openai.refused_fields import IN_CHAT, IN_COMPLETIONS, refuse_unsupported
from interfaces.http.services import Services

EitherRequest: TypeAlias = ChatCompletionRequest | CompletionRequest

_ABSENT = (b"", b"null")
_CHAT = msgspec.json.Decoder(ChatCompletionRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_check_chat = refuse_unsupported(IN_CHAT)
_check_completion = refuse_unsupported(IN_COMPLETIONS)


class _Which(Struct):
    messages: Raw = Raw()
    prompt: Raw = Raw()


_WHICH = msgspec.json.Decoder(_Which)


def either_body() -> "type[AbstractDTO[EitherRequest]]":
    """A Litestar DTO."""
    return decoded_body(EitherRequest, _decode)


def prompt_requests(services: Services, body: EitherRequest, default: str) -> list[GenerationRequest]:
    """One a prompt, however many choices it asks for. Raises InvalidRequest."""
    if isinstance(body, ChatCompletionRequest):
        return chat_requests(services, body, default)
    return completion_requests(services, body, plain_prompts(body), default)


def either_names(body: EitherRequest) -> dict[str, str]:
    """For `renamed`."""
    return wire_names(body) if isinstance(body, ChatCompletionRequest) else WIRE_NAMES


def _decode(body: bytes) -> EitherRequest:
    which = decode_json(body, _WHICH)
    is_chat, is_completion = (bytes(value) not in _ABSENT for value in (which.messages, which.prompt))
    if is_chat and is_completion:
        raise InvalidRequest("send messages (a chat) or prompt (a text completion), not both", param="prompt")
    if not is_chat and not is_completion:
        raise InvalidRequest("messages (of a chat) or prompt (of a text completion) is missing", param="messages")
    request: EitherRequest = decode_json(body, _CHAT) if is_chat else decode_json(body, _COMPLETION)
    (_check_chat if is_chat else _check_completion)(body)
    return request


__all__ = ("EitherRequest", "either_body", "either_names", "prompt_requests")
