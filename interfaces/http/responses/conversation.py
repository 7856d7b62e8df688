"""Input items of the wire as the domain's conversation.

Every role stays in its place. What one answer consisted of (reasoning, text, calls) is one message of the assistant.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from domain.errors import InvalidRequest
from domain.request.chat import ChatMessage, Role, ToolCall
from interfaces.http.fields.sampling_fields import unseen
from interfaces.http.incoming.json_body import by_type, check_arguments
from interfaces.http.responses.items import (
    PARTS,
    AudioPart,
    CallOutputItem,
    Content,
    CustomToolCallItem,
    FilePart,
    FunctionCallItem,
    ImagePart,
    Item,
    ItemReference,
    MessageItem,
    Part,
    Parts,
    ReasoningItem,
    RefusalPart,
    TextPart,
    ToolsItem,
    decoded,
    item_of,
    kind_of,
)
from interfaces.http.responses.tools import template_name

_ROLES = {"system": Role.SYSTEM, "developer": Role.DEVELOPER, "assistant": Role.ASSISTANT}


Items = str | Sequence[Raw]


def conversation(items: Items, earlier: Sequence[Raw] = ()) -> tuple[ChatMessage, ...]:
    """`earlier`: the items of the responses before. Raises InvalidRequest, naming `input[i].field`."""
    messages = tuple(_Conversation(items, earlier).messages)
    check_arguments(messages, "input")
    return messages


def tools_in(items: Items) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tools that items bring, each with its path. Raises InvalidRequest."""
    for path, raw in _with_paths("input", () if isinstance(items, str) else items):
        if kind_of(raw, path) is ToolsItem:
            tools = decoded(raw, ToolsItem, path).tools
            yield from ((f"{path}.tools[{at}]", tool) for at, tool in enumerate(tools or ()))


@dataclass(slots=True)
class _Turn:
    """The assistant's, as far as its items have come."""

    texts: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])

    def message(self) -> ChatMessage:
        thought = "\n\n".join(text for text in self.thoughts if text)
        return ChatMessage(Role.ASSISTANT, "".join(self.texts), reasoning=thought or None, tool_calls=tuple(self.calls))


class _Conversation:
    def __init__(self, items: Items, earlier: Sequence[Raw]) -> None:
        self.messages: list[ChatMessage] = []
        self._turn: _Turn | None = None
        found = [(path, item_of(raw, path)) for path, raw in _with_paths("previous_response_id", earlier)]
        if isinstance(items, str):
            found.append(("input", MessageItem("user", items)))
        else:
            found += [(path, item_of(raw, path)) for path, raw in _with_paths("input", items)]
        if not found:
            raise InvalidRequest("input must not be empty", param="input")
        self._refuses_media = not any(_is_answer(item) for _, item in found)
        for path, item in found:
            if item is not None:
                self._add(item, path)
        if self._turn is not None:
            raise InvalidRequest(
                "input: continuing an answer that the client began is not supported; the last message must not be the"
                " assistant's",
                param=found[-1][0],
            )

    def _add(self, item: Item, path: str) -> None:
        match item:
            case MessageItem():
                self._message(item, f"{path}.content")
            case ReasoningItem(content=content, summary=summary):
                thought = text_of(content or summary or [], path, refuses_media=False, between="\n\n")
                self._answer().thoughts.append(thought)
            case FunctionCallItem(call_id=id, name=name, namespace=namespace, arguments=arguments):
                self._answer().calls.append(ToolCall(id, template_name(name, namespace), arguments))
            case CustomToolCallItem(call_id=id, name=name, namespace=namespace, input=text):
                arguments = msgspec.json.encode({"input": text}).decode()
                self._answer().calls.append(ToolCall(id, template_name(name, namespace), arguments))
            case CallOutputItem(call_id=id, output=output):
                result = text_of(output, f"{path}.output", refuses_media=False)
                self._say(ChatMessage(Role.TOOL, result, tool_call_id=id))
            case ToolsItem():
                pass  # see `tools_in`
            case ItemReference():
                raise InvalidRequest("item_reference: what it refers to was not looked up", param=path)

    def _message(self, item: MessageItem, path: str) -> None:
        role = _ROLES.get(item.role, Role.USER)
        if role is Role.ASSISTANT:
            self._answer().texts.append(text_of(item.content, path, refuses_media=False, between=""))
        else:
            self._say(ChatMessage(role, text_of(item.content, path, refuses_media=self._refuses_media)))

    def _answer(self) -> _Turn:
        """The assistant's turn that the item belongs to."""
        self._turn = self._turn or _Turn()
        return self._turn

    def _say(self, message: ChatMessage) -> None:
        if self._turn is not None:
            self.messages.append(self._turn.message())
            self._turn = None
        self.messages.append(message)


def _with_paths(name: str, items: Sequence[Raw]) -> Iterator[tuple[str, Raw]]:
    return ((f"{name}[{index}]", raw) for index, raw in enumerate(items))


def _is_answer(item: Item | None) -> bool:
    match item:
        case MessageItem(role=role):
            return role == "assistant"
        case _:
            return isinstance(item, ReasoningItem | FunctionCallItem | CustomToolCallItem)


def text_of(content: Content, path: str, *, refuses_media: bool, between: str = "\n") -> str:
    """Raises InvalidRequest, naming `path[i].field`."""
    if isinstance(content, str):
        return content
    return between.join(text for text in _texts(content, path, refuses_media) if text)


def _texts(content: Parts, path: str, refuses_media: bool) -> Iterator[str]:
    for index, raw in enumerate(content):
        at = f"{path}[{index}]"
        part = by_type(raw, PARTS, at)
        if part is not None:
            yield _part_text(part, at, refuses_media)


def _part_text(part: Part, path: str, refuses_media: bool) -> str:
    match part:
        case TextPart(text=text) | RefusalPart(refusal=text):
            return text
        case ImagePart():
            return unseen("image", path, is_refused=refuses_media)
        case FilePart():
            return unseen("file", path, is_refused=refuses_media)
        case AudioPart():
            return unseen("audio", path, is_refused=refuses_media)
