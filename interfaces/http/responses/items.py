"""The input items of a response and their content parts on the wire, as far as something becomes of them.

Fields that are not here stay out of the prompt: item ids, `status`, `annotations`, `encrypted_content`, `phase`.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Struct

Parts: TypeAlias = list[dict[str, Any]]
Content: TypeAlias = str | Parts


class TextPart(Struct):
    """Its text."""

    text: str


class RefusalPart(Struct):
    """Its text."""

    refusal: str


class ImagePart(Struct):
    """Refused in a conversation without an answer, else a note that it is left out."""


class FilePart(Struct):
    """As an image."""


class AudioPart(Struct):
    """As an image."""


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
"""By `type`. All others become nothing."""


class MessageItem(Struct):
    """A message; `type` may be missing. Roles nobody knows speak as users."""

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
    """What a call gave."""

    call_id: str
    output: Content


class ToolsItem(Struct):
    """More tools, as if they stood in `tools`."""

    tools: list[dict[str, Any]] | None = None


class ItemReference(Struct):
    """The item of a stored response that has this id."""


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
"""By `type`. All others, known to nobody or run by a server (`web_search_call`, `tool_search_call`, `compaction`, ...),
become nothing."""


__all__ = (
    "ITEMS",
    "PARTS",
    "AudioPart",
    "CallOutputItem",
    "Content",
    "CustomToolCallItem",
    "FilePart",
    "FunctionCallItem",
    "ImagePart",
    "Item",
    "ItemReference",
    "MessageItem",
    "Part",
    "Parts",
    "ReasoningItem",
    "RefusalPart",
    "TextPart",
    "ToolsItem",
)
