"""Messages and system of the wire as the domain's conversation.

Every role stays in its place: agents send `system` messages in the middle. Roles that nobody knows speak as users.
"""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from domain.errors import InvalidRequest
from domain.request.chat import ChatMessage, Role, ToolCall
from interfaces.http.anthropic.block_text import BETWEEN, block_text, blocks_of, text_of
from interfaces.http.anthropic.blocks import Content, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock

BILLING = "x-anthropic-billing-header:"
"""Opens a system block of Claude Code that changes with every question, 47 characters into the prompt."""

_INSTRUCTING = {"system": Role.SYSTEM, "developer": Role.DEVELOPER}


class MessageParam(Struct):
    role: str
    content: Content


def conversation(system: Content | None, messages: Sequence[MessageParam]) -> tuple[ChatMessage, ...]:
    """Raises InvalidRequest, naming `messages[i].content[j]`."""
    refuses_media = not any(message.role == "assistant" for message in messages)
    told = list(_system(system))
    for index, message in enumerate(messages):
        told += _message(message, f"messages[{index}].content", refuses_media)
    if not messages:
        raise InvalidRequest("messages must not be empty", param="messages")
    return tuple(told)


def _system(system: Content | None) -> Iterator[ChatMessage]:
    blocks = blocks_of(system or "", "system")
    texts = [block.text for _, block in blocks if isinstance(block, TextBlock) and not block.text.startswith(BILLING)]
    if texts:
        yield ChatMessage(Role.SYSTEM, BETWEEN.join(texts))


def _message(message: MessageParam, path: str, refuses_media: bool) -> list[ChatMessage]:
    if message.role == "assistant":
        return _assistant(message.content, path)
    if (role := _INSTRUCTING.get(message.role)) is not None:
        return [ChatMessage(role, text_of(message.content, path, refuses_media=refuses_media))]
    return _user(message.content, path, refuses_media)


def _assistant(content: Content, path: str) -> list[ChatMessage]:
    """One message, or none: the blocks are pieces of one text, one reasoning and one list of calls."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for at, block in blocks_of(content, path):
        match block:
            case ThinkingBlock(thinking=thinking):
                thoughts.append(thinking)
            case ToolUseBlock():
                calls.append(ToolCall(block.id, block.name, _arguments(block)))
            case _:
                texts.append(block_text(block, at, refuses_media=False))
    message = ChatMessage(Role.ASSISTANT, "".join(texts), reasoning="".join(thoughts) or None, tool_calls=tuple(calls))
    return [message] if message.content or message.reasoning or message.tool_calls else []


def _arguments(block: ToolUseBlock) -> str:
    """As JSON text. What Claude Code could not parse comes back as it was generated."""
    match block.input:
        case {"__unparsedToolInput": {"raw": str(raw)}}:
            return raw
        case arguments:
            return msgspec.json.encode(arguments).decode()


def _user(content: Content, path: str, refuses_media: bool) -> list[ChatMessage]:
    """Results of tools are messages of their own; what stands between them is the user's."""
    told: list[ChatMessage] = []
    texts: list[str] = []
    for at, block in blocks_of(content, path):
        if isinstance(block, ToolResultBlock):
            told += _joined(texts)
            texts = []
            result = text_of(block.content or "", f"{at}.content", refuses_media=False)
            told.append(ChatMessage(Role.TOOL, result, tool_call_id=block.tool_use_id, is_error=block.is_error is True))
        else:
            texts.append(block_text(block, at, refuses_media=refuses_media))
    return told + _joined(texts) or [ChatMessage(Role.USER)]


def _joined(texts: Sequence[str]) -> list[ChatMessage]:
    text = BETWEEN.join(text for text in texts if text)
    return [ChatMessage(Role.USER, text)] if text else []


def input_of(arguments: str) -> dict[str, object]:
    """Generated arguments as a `tool_use` block's input; text that is no JSON object as Claude Code says it."""
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, object])
    except (ValueError, RecursionError):
        return {"__unparsedToolInput": {"raw": arguments, "len": len(arguments)}}
