"""The messages of a chat request on the wire, and their translation. Text only: other media are refused by position."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from domain.errors import InvalidRequest
from domain.request.chat import ChatMessage, Role, ToolCall
from interfaces.http.incoming.json_body import check_arguments


class TextPart(Struct, tag_field="type", tag="text"):
    """Its text."""

    text: str


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    """Its text."""

    refusal: str


class ImagePart(Struct, tag_field="type", tag="image_url"):
    """Refused by name."""

    image_url: Any = None


class AudioPart(Struct, tag_field="type", tag="input_audio"):
    """Refused by name."""

    input_audio: Any = None


class VideoPart(Struct, tag_field="type", tag="video_url"):
    """Refused by name."""

    video_url: Any = None


class FilePart(Struct, tag_field="type", tag="file"):
    """Refused by name."""

    file: Any = None


Part: TypeAlias = TextPart | RefusalPart | ImagePart | AudioPart | VideoPart | FilePart
Content: TypeAlias = str | list[Part]


class FunctionCall(Struct):
    name: str
    arguments: str = ""


class AssistantToolCall(Struct):
    function: FunctionCall
    id: str = ""
    type: Literal["function"] = "function"


class SystemMessage(Struct, tag_field="role", tag="system"):
    content: Content
    name: str | None = None


class DeveloperMessage(Struct, tag_field="role", tag="developer"):
    content: Content
    name: str | None = None


class UserMessage(Struct, tag_field="role", tag="user"):
    content: Content
    name: str | None = None


class AssistantMessage(Struct, tag_field="role", tag="assistant"):
    """An earlier answer. Its reasoning may come under either of the names servers use for it. With `prefix` or
    `partial`, as the last message, it is the beginning of the answer."""

    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[AssistantToolCall] | None = None
    prefix: bool | None = None
    partial: bool | None = None


class ToolMessage(Struct, tag_field="role", tag="tool"):
    content: Content
    tool_call_id: str | None = None
    name: str | None = None


Message: TypeAlias = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage

_MEDIA: dict[type[Struct], str] = {ImagePart: "images", AudioPart: "audio", VideoPart: "video", FilePart: "files"}


def chat_messages(messages: Sequence[Message]) -> tuple[ChatMessage, ...]:
    """Raises InvalidRequest, naming `messages[i].content[j]`."""
    found = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))
    check_arguments(found, "messages")
    return found


def _message(message: Message, path: str) -> ChatMessage:
    text = _text(message.content, path)
    match message:
        case SystemMessage(name=name):
            return ChatMessage(Role.SYSTEM, text, name)
        case DeveloperMessage(name=name):
            return ChatMessage(Role.DEVELOPER, text, name)
        case UserMessage(name=name):
            return ChatMessage(Role.USER, text, name)
        case ToolMessage(name=name, tool_call_id=call_id):
            return ChatMessage(Role.TOOL, text, name, tool_call_id=call_id)
        case AssistantMessage():
            return _assistant(message, text)


def _assistant(message: AssistantMessage, text: str) -> ChatMessage:
    calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ())
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    return ChatMessage(Role.ASSISTANT, text or message.refusal or "", message.name, reasoning, calls)


def _text(content: Content | None, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part_text(part, f"{path}.content[{index}]") for index, part in enumerate(content))


def _part_text(part: Part, path: str) -> str:
    match part:
        case TextPart(text=text) | RefusalPart(refusal=text):
            return text
        case _:
            raise InvalidRequest(f"{path}: {_MEDIA[type(part)]} are not supported, only text", param=path)
