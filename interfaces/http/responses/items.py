"""Input items of the wire, their content parts, and the types that are known of both.

Items stay raw JSON until they are read, one at a time: what is stored is what was sent, and a field that stays out of
the prompt (`status`, `annotations`, `phase`) costs its bytes only. An item of an unknown type is refused, since it
would be stored and never read; a part of an unknown type is left out, as clients add kinds with each release.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from domain.errors import InvalidRequest, require
from domain.printable import printable
from interfaces.http.incoming.json_body import refusal

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
    """A data URL, or a URL where the server allows its host; also in results of tools. With a `file_id`, as an
    `input_file` with one."""

    image_url: str | None = None
    detail: str | None = None


class FilePart(Struct):
    """A PDF file or text in UTF-8 as `file_data`, a data URL: the model reads its text. With a `file_id` or `file_url`,
    refused in a conversation without an answer, else a note that it is left out."""

    file_data: str | None = None
    filename: str | None = None
    file_url: str | None = None


class AudioPart(Struct):
    """Refused in a conversation without an answer, else a note that it is left out."""


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
    id: str | None = None


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


class CompactionItem(Struct):
    """A summary in place of what the assistant and its tools said before it ([compaction](#compaction))."""

    encrypted_content: str


class TriggerItem(Struct):
    """As the last item of the input: the answer is a `compaction` item. Refused elsewhere."""


class McpListItem(Struct):
    """The tools of a server as an earlier answer listed them; they are listed anew, and the item is not repeated."""

    server_label: str


class McpCallItem(Struct):
    """A call that the server ran, with its result or error."""

    server_label: str
    name: str
    arguments: str
    id: str = ""
    output: str | None = None
    error: Any = None
    approval_request_id: str | None = None


class ApprovalRequestItem(Struct):
    """A call that waits for its approval."""

    id: str
    server_label: str
    name: str
    arguments: str


class ApprovalResponseItem(Struct):
    """The client's decision on a call: an approved call is run before the answer."""

    approval_request_id: str
    approve: bool
    reason: str | None = None


Item: TypeAlias = (
    MessageItem
    | ReasoningItem
    | FunctionCallItem
    | CustomToolCallItem
    | CallOutputItem
    | ToolsItem
    | ItemReference
    | CompactionItem
    | TriggerItem
    | McpListItem
    | McpCallItem
    | ApprovalRequestItem
    | ApprovalResponseItem
)

Calls: TypeAlias = FunctionCallItem | CustomToolCallItem

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
    "compaction": CompactionItem,
    "compaction_summary": CompactionItem,
    "compaction_trigger": TriggerItem,
    "mcp_list_tools": McpListItem,
    "mcp_call": McpCallItem,
    "mcp_approval_request": ApprovalRequestItem,
    "mcp_approval_response": ApprovalResponseItem,
}
"""Items by `type`."""

LEFT_OUT = frozenset(
    {
        "apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "computer_call", "computer_call_output",
        "configuration_update", "context_compaction", "file_search_call", "ghost_snapshot", "image_generation_call",
        "local_shell_call", "local_shell_call_output", "other", "program", "program_output", "shell_call",
        "shell_call_output", "tool_search_call", "web_search_call",
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
