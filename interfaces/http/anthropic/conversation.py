"""Messages and the system prompt as the domain's conversation, block by block.

Every role stays in its place: agents send `system` messages in the middle. Unknown roles speak as users. Fields of
blocks that are not here stay out of the prompt: `cache_control`, `citations`, a thinking block's `signature`, ids.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from domain.errors import require
from domain.half_pairs import without_halves
from domain.request.chat import ChatMessage, Media, Role, ToolCall, message_of
from domain.request.server_calls import NOT_RUN
from domain.tool_server_names import SEPARATOR
from interfaces.http.fields.media_fields import file_of, image_of
from interfaces.http.fields.sampling_fields import media_note
from interfaces.http.incoming.json_body import by_type, converted

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
    """The result of a call. The model is shown `is_error` true."""

    tool_use_id: str
    content: Content | None = None
    is_error: bool | None = None


class McpToolUseBlock(Struct):
    """A call of an earlier answer that the server ran."""

    id: str
    name: str
    server_name: str
    input: dict[str, Any]


class McpToolResultBlock(Struct):
    """The result of such a call, in the answer that holds it. A call without one was not run."""

    tool_use_id: str
    content: Content | None = None
    is_error: bool | None = None


class ImageBlock(Struct):
    """`base64`, or a `url` where the server allows its host; also in results of tools."""

    source: dict[str, Any]


class TextSource(Struct):
    data: str


class UrlSource(Struct):
    url: str


class ContentSource(Struct):
    content: Content


class DocumentBlock(Struct):
    """Its title, context and source: text, content, or a file in `base64`, whose text is read (PDF or UTF-8). Sources
    `url` and `file` are refused in a conversation without an answer, else a note says that they are left out."""

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
    | McpToolUseBlock
    | McpToolResultBlock
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
    "mcp_tool_use": McpToolUseBlock,
    "mcp_tool_result": McpToolResultBlock,
    "image": ImageBlock,
    "document": DocumentBlock,
    "search_result": SearchResultBlock,
    "tool_reference": ToolReferenceBlock,
    "compaction": CompactionBlock,
}
"""Blocks by `type`. All others, unknown ones and those run by another server (`server_tool_use`,
`web_search_tool_result`, `redacted_thinking`, ...), become nothing."""


BETWEEN = "\n"
"""Between blocks of one message. A string means the same as one block of text."""


def blocks_of(content: Content, path: str) -> Iterator[tuple[str, Block]]:
    """Every block that has an effect, with its path. Raises InvalidRequest, naming `path[i].field`."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for index, raw in enumerate(content):
        at = f"{path}[{index}]"
        block = by_type(raw, BLOCKS, at)
        if block is not None and not (isinstance(block, TextBlock) and not block.text):
            yield at, block


def pieces_of(content: Content, path: str, *, refuses_media: bool) -> list[str | Media]:
    """Returns the texts and images of all blocks. Raises InvalidRequest."""
    blocks = blocks_of(content, path)
    return [piece for at, block in blocks for piece in block_pieces(block, at, refuses_media=refuses_media)]


def block_pieces(block: Block, path: str, *, refuses_media: bool) -> Iterator[str | Media]:
    """Yields the texts and images of one block; none for blocks without. Raises InvalidRequest."""
    match block:
        case TextBlock(text=text):
            yield text
        case ImageBlock(source=source):
            yield _image(source, path, refuses_media)
        case DocumentBlock(title=title, context=context, source=source):
            yield from (title or "", context or "")
            yield from _source_pieces(source, path, refuses_media)
        case SearchResultBlock(content=content, source=source, title=title):
            yield from (title, source)
            yield from _inner_pieces(content, f"{path}.content", refuses_media)
        case ToolReferenceBlock(tool_name=name):
            yield name
        case CompactionBlock(content=summary):
            yield summary or ""
        case _:
            pass


def _inner_pieces(content: Content, path: str, refuses_media: bool) -> Iterator[str | Media]:
    """Yields the pieces of content inside a block: texts and images only, so that nothing nests."""
    for at, block in blocks_of(content, path):
        if isinstance(block, TextBlock | ImageBlock):
            yield from block_pieces(block, at, refuses_media=refuses_media)


def _source_pieces(source: Mapping[str, Any], path: str, refuses_media: bool) -> Iterator[str | Media]:
    match source.get("type"):
        case "text":
            yield converted(source, TextSource, f"{path}.source").data
        case "base64":
            data = converted(source, TextSource, f"{path}.source").data
            yield file_of(data, f"{path}.source.data")
        case "content":
            content = converted(source, ContentSource, f"{path}.source").content
            yield from _inner_pieces(content, f"{path}.source.content", refuses_media)
        case _:
            yield media_note("stored document", path, is_refused=refuses_media)


def _image(source: Mapping[str, Any], path: str, refuses_media: bool) -> str | Media:
    match source.get("type"):
        case "base64":
            data = converted(source, TextSource, f"{path}.source").data
            return image_of(data, f"{path}.source.data", is_url=False)
        case "url":
            return image_of(converted(source, UrlSource, f"{path}.source").url, f"{path}.source.url")
        case _:
            return media_note("stored image", path, is_refused=refuses_media)


BILLING = "x-anthropic-billing-header:"
"""The beginning of a system block of Claude Code that changes with every question, 47 characters into the prompt."""

_INSTRUCTING = {"system": Role.SYSTEM, "developer": Role.DEVELOPER}


class MessageParam(Struct):
    role: str
    content: Content


def conversation(system: Content | None, messages: Sequence[MessageParam]) -> tuple[ChatMessage, ...]:
    """Raises InvalidRequest, naming `messages[i].content[j]`."""
    refuses_media = not any(message.role == "assistant" for message in messages)
    found = list(_system(system))
    for index, message in enumerate(messages):
        found += _message(message, f"messages[{index}].content", refuses_media)
    require(len(messages) > 0, "messages", "must not be empty")
    return tuple(found)


def _system(system: Content | None) -> Iterator[ChatMessage]:
    blocks = blocks_of(system or "", "system")
    texts = [block.text for _, block in blocks if isinstance(block, TextBlock) and not block.text.startswith(BILLING)]
    if texts:
        yield ChatMessage(Role.SYSTEM, BETWEEN.join(texts))


def _message(message: MessageParam, path: str, refuses_media: bool) -> list[ChatMessage]:
    if message.role == "assistant":
        return _assistant(message.content, path)
    if (role := _INSTRUCTING.get(message.role)) is not None:
        return [message_of(role, pieces_of(message.content, path, refuses_media=refuses_media), BETWEEN)]
    return _user(message.content, path, refuses_media)


@dataclass(slots=True)
class _Step:
    """A step of an answer: its blocks are pieces of one text, one reasoning and one list of calls. `results`: of those
    calls that the server runs, by the call's id; None for one that was not run."""

    pieces: list[str | Media] = field(default_factory=list[str | Media])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    results: dict[str, ChatMessage | None] = field(default_factory=dict[str, ChatMessage | None])

    def messages(self) -> list[ChatMessage]:
        """One message and the results in the order of their calls; none of nothing."""
        reasoning, said = "".join(self.thoughts) or None, message_of(Role.ASSISTANT, self.pieces)
        message = replace(said, reasoning=reasoning, tool_calls=tuple(self.calls))
        results = [result or NOT_RUN.message(id) for id, result in self.results.items()]
        return [message, *results] if said.content or said.media or reasoning or self.calls else []


def _assistant(content: Content, path: str) -> list[ChatMessage]:
    """Returns one message, or none; of an answer in which the server ran calls, the messages of each step. In a step
    all calls stand before the results."""
    steps = [_Step()]
    has_results = False
    for at, block in blocks_of(content, path):
        if isinstance(block, McpToolResultBlock):
            if block.tool_use_id in steps[-1].results:
                steps[-1].results[block.tool_use_id] = _result(block, at)
                has_results = True
            continue
        if has_results:
            steps.append(_Step())
            has_results = False
        step = steps[-1]
        match block:
            case ThinkingBlock(thinking=thinking):
                step.thoughts.append(thinking)
            case ToolUseBlock():
                step.calls.append(ToolCall(block.id, block.name, _arguments(block)))
            case McpToolUseBlock():
                name = f"{block.server_name}{SEPARATOR}{block.name}"
                step.calls.append(ToolCall(block.id, name, _arguments(block)))
                step.results[block.id] = None
            case _:
                step.pieces += block_pieces(block, at, refuses_media=False)
    return [message for step in steps for message in step.messages()]


def _result(block: ToolResultBlock | McpToolResultBlock, path: str) -> ChatMessage:
    pieces = pieces_of(block.content or "", f"{path}.content", refuses_media=False)
    message = message_of(Role.TOOL, pieces, BETWEEN)
    return replace(message, tool_call_id=block.tool_use_id, is_error=block.is_error is True)


def _arguments(block: ToolUseBlock | McpToolUseBlock) -> str:
    """The arguments as JSON text. Text that Claude Code could not parse is returned as it was generated."""
    match block.input:
        case {"__unparsedToolInput": {"raw": str(raw)}}:
            return raw
        case arguments:
            return msgspec.json.encode(arguments).decode()


def _user(content: Content, path: str, refuses_media: bool) -> list[ChatMessage]:
    """Returns tool results as separate messages; the blocks between them form the user's messages."""
    found: list[ChatMessage] = []
    pieces: list[str | Media] = []
    for at, block in blocks_of(content, path):
        if isinstance(block, ToolResultBlock):
            found += _joined(pieces)
            pieces = []
            found.append(_result(block, at))
        else:
            pieces += block_pieces(block, at, refuses_media=refuses_media)
    return found + _joined(pieces) or [ChatMessage(Role.USER)]


def _joined(pieces: Sequence[str | Media]) -> list[ChatMessage]:
    message = message_of(Role.USER, pieces, BETWEEN)
    return [message] if message.content or message.media else []


def input_of(arguments: str) -> dict[str, object]:
    """Generated arguments as a `tool_use` block's input; text that is no JSON object as Claude Code says it."""
    try:
        return msgspec.json.decode(without_halves(arguments.encode()) or "{}", type=dict[str, object])
    except (ValueError, RecursionError):
        return {"__unparsedToolInput": {"raw": arguments, "len": len(arguments)}}
