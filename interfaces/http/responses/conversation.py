"""Input items of the wire as the domain's conversation.

Every role stays in its place. What one answer consisted of (reasoning, text, calls) is one message of the assistant.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from domain.chat import ChatMessage, Role, ToolCall
from domain.errors import InvalidRequest
from interfaces.http.by_type import by_type, converted
from interfaces.http.responses.items import (
    ITEMS,
    CallOutputItem,
    CustomToolCallItem,
    FunctionCallItem,
    Item,
    ItemReference,
    MessageItem,
    ReasoningItem,
    ToolsItem,
)
from interfaces.http.responses.part_text import text_of
from interfaces.http.responses.tools import template_name

_ROLES = {"system": Role.SYSTEM, "developer": Role.DEVELOPER, "assistant": Role.ASSISTANT}


Items = str | Sequence[Mapping[str, Any]]


def conversation(items: Items) -> tuple[ChatMessage, ...]:
    """Raises InvalidRequest, naming `input[i].field`."""
    return tuple(_Conversation(items).messages)


def tools_in(items: Items) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tools that items bring, each with its path. Raises InvalidRequest."""
    for index, raw in enumerate(items if not isinstance(items, str) else ()):
        if ITEMS.get(str(raw.get("type"))) is ToolsItem:
            tools = converted(raw, ToolsItem, f"input[{index}]").tools
            yield from ((f"input[{index}].tools[{at}]", tool) for at, tool in enumerate(tools or ()))


class _Conversation:
    def __init__(self, items: Items) -> None:
        self.messages: list[ChatMessage] = []
        if isinstance(items, str):
            items = [{"type": "message", "role": "user", "content": items}]
        if not items:
            raise InvalidRequest("input must not be empty", param="input")
        self._refuses_media = not any(_is_answer(item) for item in items)
        for index, raw in enumerate(items):
            path = f"input[{index}]"
            item = by_type(_with_type(raw), ITEMS, path)
            if item is not None:
                self._add(item, path)
        if self.messages and self.messages[-1].role is Role.ASSISTANT:
            raise InvalidRequest(
                "input: continuing an answer that the client began is not supported; the last message must not be the"
                " assistant's",
                param=f"input[{len(items) - 1}]",
            )

    def _add(self, item: Item, path: str) -> None:
        match item:
            case MessageItem():
                self._message(item, f"{path}.content")
            case ReasoningItem(content=content, summary=summary):
                thought = text_of(content or summary or [], path, refuses_media=False, between="\n\n")
                self._answer(ChatMessage(Role.ASSISTANT, reasoning=thought or None))
            case FunctionCallItem(call_id=id, name=name, namespace=namespace, arguments=arguments):
                self._call(ToolCall(id, template_name(name, namespace), arguments))
            case CustomToolCallItem(call_id=id, name=name, namespace=namespace, input=text):
                arguments = msgspec.json.encode({"input": text}).decode()
                self._call(ToolCall(id, template_name(name, namespace), arguments))
            case CallOutputItem(call_id=id, output=output):
                result = text_of(output, f"{path}.output", refuses_media=False)
                self.messages.append(ChatMessage(Role.TOOL, result, tool_call_id=id))
            case ToolsItem():
                pass  # see `tools_in`
            case ItemReference():
                raise InvalidRequest("items can be referred to by id only where responses are stored", param=path)

    def _message(self, item: MessageItem, path: str) -> None:
        role = _ROLES.get(item.role, Role.USER)
        if role is Role.ASSISTANT:
            self._answer(ChatMessage(role, text_of(item.content, path, refuses_media=False, between="")))
        else:
            text = text_of(item.content, path, refuses_media=self._refuses_media)
            self.messages.append(ChatMessage(role, text))

    def _call(self, call: ToolCall) -> None:
        self._answer(ChatMessage(Role.ASSISTANT, tool_calls=(call,)))

    def _answer(self, part: ChatMessage) -> None:
        """One more part of the assistant's turn."""
        if self.messages and self.messages[-1].role is Role.ASSISTANT:
            begun = self.messages.pop()
            part = ChatMessage(
                Role.ASSISTANT,
                begun.content + part.content,
                reasoning="\n\n".join(thought for thought in (begun.reasoning, part.reasoning) if thought) or None,
                tool_calls=begun.tool_calls + part.tool_calls,
            )
        self.messages.append(part)


def _with_type(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Messages may come without their type."""
    return raw if "type" in raw or "role" not in raw else {**raw, "type": "message"}


def _is_answer(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ("reasoning", "function_call", "custom_tool_call")


__all__ = ("Items", "conversation", "tools_in")
