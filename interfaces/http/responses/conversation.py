"""Input items of the wire as the domain's conversation.

Every role stays in its place. The items of one answer (reasoning, text, calls) are one message of the assistant.

Items stay raw JSON until they are read, one at a time: what is stored is what was sent, and a field that stays out of
the prompt (`status`, `annotations`, `encrypted_content`, `phase`) costs its bytes only. An item of an unknown type is
refused, since it would be stored and never read; a part of an unknown type is left out, as clients add kinds with each
release.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from domain.errors import InvalidRequest, require
from domain.printable import printable
from domain.request.chat import ChatMessage, Role, ToolCall, message_of
from domain.request.media import Image
from interfaces.http.fields.custom_tools import custom_arguments
from interfaces.http.fields.image_fields import image_of
from interfaces.http.fields.sampling_fields import media_note
from interfaces.http.incoming.json_body import by_type, check_arguments, refusal
from interfaces.http.responses.tools import template_name

StructT = TypeVar("StructT", bound=Struct)

Parts: TypeAlias = list[dict[str, Any]]
Content: TypeAlias = str | Parts


class TextPart(Struct):
    """Its text."""

    text: str


class RefusalPart(Struct):
    """Its text."""

    refusal: str


class ImagePart(Struct):
    """A data URL, or a URL where the server allows its host; also in results of tools. With a `file_id`, as a file."""

    image_url: str | None = None
    detail: str | None = None


class FilePart(Struct):
    """Refused in a conversation without an answer, else a note that it is left out."""


class AudioPart(Struct):
    """Treated as a file."""


Part: TypeAlias = TextPart | RefusalPart | ImagePart | FilePart | AudioPart

PARTS: Mapping[str, type[Part]] = {
    "input_text": TextPart,
    "output_text": TextPart,
    "text": TextPart,
    "summary_text": TextPart,
    "reasoning_text": TextPart,
    "refusal": RefusalPart,
    "input_image": ImagePart,
    "input_file": FilePart,
    "input_audio": AudioPart,
}
"""Parts by `type`. All others are left out."""


class MessageItem(Struct):
    """A message; `type` may be missing. Unknown roles speak as users."""

    role: str
    content: Content


class ReasoningItem(Struct):
    """Reasoning of an earlier answer: its content, else its summary."""

    summary: Parts | None = None
    content: Parts | None = None


class FunctionCallItem(Struct):
    """A call of an earlier answer; the text of its arguments is kept as it is."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomToolCallItem(Struct):
    """A call of a custom tool: as one of a function with the argument `input`."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None


class CallOutputItem(Struct):
    """The result of a call."""

    call_id: str
    output: Content


class ToolsItem(Struct):
    """More tools, as if they stood in `tools`."""

    tools: list[dict[str, Any]] | None = None


class ItemReference(Struct):
    """The item of a stored response that has this id."""

    id: str


Item: TypeAlias = (
    MessageItem | ReasoningItem | FunctionCallItem | CustomToolCallItem | CallOutputItem | ToolsItem | ItemReference
)

ITEMS: Mapping[str, type[Item]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": FunctionCallItem,
    "function_call_output": CallOutputItem,
    "custom_tool_call": CustomToolCallItem,
    "custom_tool_call_output": CallOutputItem,
    "additional_tools": ToolsItem,
    "tool_search_output": ToolsItem,
    "item_reference": ItemReference,
}
"""Items by `type`."""

LEFT_OUT = frozenset(
    {
        "apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "compaction", "compaction_summary",
        "compaction_trigger", "computer_call", "computer_call_output", "configuration_update", "context_compaction",
        "file_search_call", "ghost_snapshot", "image_generation_call", "local_shell_call", "local_shell_call_output",
        "mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools", "other", "program",
        "program_output", "shell_call", "shell_call_output", "tool_search_call", "web_search_call",
    }
)  # fmt: skip
"""Types of items that OpenAI's server or codex writes, and that become nothing here."""


class _Head(Struct):
    type: str | None = None
    role: str | None = None


def kind_of(raw: Raw, path: str) -> type[Item] | None:
    """The type of an item; None for one that is left out. Raises InvalidRequest, naming `path` and its field."""
    head = decoded(raw, _Head, path)
    name = head.type or ("message" if head.role is not None else None)
    require(name is not None, f"{path}.type", "is missing")
    if name is None or name in LEFT_OUT:
        return None
    if name not in ITEMS:
        message = f"{path}.type: items of type '{printable(name, 100)}' are not known here; leave the item out"
        raise InvalidRequest(message, param=f"{path}.type")
    return ITEMS[name]


def item_of(raw: Raw, path: str) -> Item | None:
    """None for an item that is left out. Raises InvalidRequest, naming the field below `path`."""
    kind = kind_of(raw, path)
    return None if kind is None else decoded(raw, kind, path)


def decoded(raw: Raw, kind: type[StructT], path: str) -> StructT:
    """Raises InvalidRequest, naming the field below `path`."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise refusal(error, path) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is not JSON: {error}", param=path) from None


_ROLES = {"system": Role.SYSTEM, "developer": Role.DEVELOPER, "assistant": Role.ASSISTANT}


Items = str | Sequence[Raw]


def conversation(items: Items, earlier: Sequence[Raw] = ()) -> tuple[ChatMessage, ...]:
    """The messages of a request. `earlier`: the items of the previous responses. Raises InvalidRequest, naming
    `input[i].field`."""
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
    """The assistant's turn, so far."""

    pieces: list[str | Image] = field(default_factory=list[str | Image])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])

    def message(self) -> ChatMessage:
        thought = "\n\n".join(text for text in self.thoughts if text)
        said = message_of(Role.ASSISTANT, self.pieces)
        return replace(said, reasoning=thought or None, tool_calls=tuple(self.calls))


class _Conversation:
    def __init__(self, items: Items, earlier: Sequence[Raw]) -> None:
        self.messages: list[ChatMessage] = []
        self._turn: _Turn | None = None
        found = [(path, item_of(raw, path)) for path, raw in _with_paths("previous_response_id", earlier)]
        if isinstance(items, str):
            found.append(("input", MessageItem("user", items)))
        else:
            found += [(path, item_of(raw, path)) for path, raw in _with_paths("input", items)]
        require(len(found) > 0, "input", "must not be empty")
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
                pieces = pieces_of(content or summary or [], path, refuses_media=False)
                self._assistant_turn().thoughts.append(message_of(Role.ASSISTANT, pieces, "\n\n").content)
            case FunctionCallItem(call_id=id, name=name, namespace=namespace, arguments=arguments):
                self._assistant_turn().calls.append(ToolCall(id, template_name(name, namespace), arguments))
            case CustomToolCallItem(call_id=id, name=name, namespace=namespace, input=text):
                arguments = custom_arguments(text)
                self._assistant_turn().calls.append(ToolCall(id, template_name(name, namespace), arguments))
            case CallOutputItem(call_id=id, output=output):
                pieces = pieces_of(output, f"{path}.output", refuses_media=False)
                self._append(replace(message_of(Role.TOOL, pieces, "\n"), tool_call_id=id))
            case ToolsItem():
                pass  # see `tools_in`
            case ItemReference():
                raise InvalidRequest("item_reference: the item was not looked up", param=path)

    def _message(self, item: MessageItem, path: str) -> None:
        role = _ROLES.get(item.role, Role.USER)
        if role is Role.ASSISTANT:
            self._assistant_turn().pieces += pieces_of(item.content, path, refuses_media=False)
        else:
            pieces = pieces_of(item.content, path, refuses_media=self._refuses_media)
            self._append(message_of(role, pieces, "\n"))

    def _assistant_turn(self) -> _Turn:
        """The assistant's turn that the item belongs to."""
        self._turn = self._turn or _Turn()
        return self._turn

    def _append(self, message: ChatMessage) -> None:
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


def pieces_of(content: Content, path: str, *, refuses_media: bool) -> list[str | Image]:
    """Returns the texts and images of content. Raises InvalidRequest, naming `path[i].field`."""
    if isinstance(content, str):
        return [content]
    found: list[str | Image] = []
    for index, raw in enumerate(content):
        at = f"{path}[{index}]"
        if (part := by_type(raw, PARTS, at)) is not None:
            found.append(_piece(part, at, refuses_media))
    return found


def _piece(part: Part, path: str, refuses_media: bool) -> str | Image:
    match part:
        case TextPart(text=text) | RefusalPart(refusal=text):
            return text
        case ImagePart(image_url=str(url), detail=detail):
            return image_of(url, f"{path}.image_url", detail)
        case ImagePart():
            return media_note("stored image", path, is_refused=refuses_media)
        case FilePart():
            return media_note("file", path, is_refused=refuses_media)
        case AudioPart():
            return media_note("audio", path, is_refused=refuses_media)
