"""The content blocks of a message on the wire, as far as something becomes of them.

Fields that are not here stay out of the prompt: `cache_control`, `citations`, a thinking block's `signature`, ids.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Struct

Blocks: TypeAlias = list[dict[str, Any]]
Content: TypeAlias = str | Blocks


class TextBlock(Struct):
    """Its text. An empty one is dropped."""

    text: str


class ThinkingBlock(Struct):
    """Reasoning of an earlier answer, for the template to show or to drop."""

    thinking: str = ""


class ToolUseBlock(Struct):
    """A call of an earlier answer. The order of the arguments is kept."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Struct):
    """What a call gave. `is_error` true is told to the model."""

    tool_use_id: str
    content: Content | None = None
    is_error: bool | None = None


class ImageBlock(Struct):
    """Refused in a conversation without an answer, else a note that it is left out."""


class TextSource(Struct):
    data: str


class ContentSource(Struct):
    content: Content


class DocumentBlock(Struct):
    """Plain text and content are read; other sources as an image."""

    source: dict[str, Any]
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Struct):
    """Its title, source and text."""

    content: Blocks
    source: str = ""
    title: str = ""


class ToolReferenceBlock(Struct):
    """The tool's name."""

    tool_name: str


class CompactionBlock(Struct):
    """The summary in it."""

    content: str | None = None


Block: TypeAlias = (
    TextBlock
    | ThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolReferenceBlock
    | CompactionBlock
)

BLOCKS: Mapping[str, type[Block]] = {
    "text": TextBlock,
    "thinking": ThinkingBlock,
    "tool_use": ToolUseBlock,
    "tool_result": ToolResultBlock,
    "image": ImageBlock,
    "document": DocumentBlock,
    "search_result": SearchResultBlock,
    "tool_reference": ToolReferenceBlock,
    "compaction": CompactionBlock,
}
"""By `type`. All others, known to nobody or run by a server (`server_tool_use`, `web_search_tool_result`,
`redacted_thinking`, ...), become nothing."""
