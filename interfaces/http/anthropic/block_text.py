"""Content as the text that a model reads."""

from collections.abc import Iterator, Mapping
from typing import Any

from interfaces.http.anthropic.blocks import (
    BLOCKS,
    Block,
    CompactionBlock,
    Content,
    ContentSource,
    DocumentBlock,
    ImageBlock,
    SearchResultBlock,
    TextBlock,
    TextSource,
    ToolReferenceBlock,
)
from interfaces.http.fields.sampling_fields import unseen
from interfaces.http.incoming.json_body import by_type, converted

BETWEEN = "\n"
"""Between blocks of one message. A string means the same as one block of text."""


def blocks_of(content: Content, path: str) -> Iterator[tuple[str, Block]]:
    """Every block that something becomes of, with its path. Raises InvalidRequest, naming `path[i].field`."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for index, raw in enumerate(content):
        at = f"{path}[{index}]"
        block = by_type(raw, BLOCKS, at)
        if block is not None and not (isinstance(block, TextBlock) and not block.text):
            yield at, block


def text_of(content: Content, path: str, *, refuses_media: bool) -> str:
    """What all of the content says, one block after the other. Raises InvalidRequest."""
    texts = (block_text(block, at, refuses_media=refuses_media) for at, block in blocks_of(content, path))
    return BETWEEN.join(text for text in texts if text)


def block_text(block: Block, path: str, *, refuses_media: bool) -> str:
    """What one block says; nothing for those that are no text. Raises InvalidRequest."""
    match block:
        case TextBlock(text=text):
            return text
        case ImageBlock():
            return unseen("image", path, is_refused=refuses_media)
        case DocumentBlock():
            return _document(block, path, refuses_media)
        case SearchResultBlock(content=content, source=source, title=title):
            found = _inner_text(content, f"{path}.content", refuses_media)
            return BETWEEN.join(text for text in (title, source, found) if text)
        case ToolReferenceBlock(tool_name=name):
            return name
        case CompactionBlock(content=summary):
            return summary or ""
        case _:
            return ""


def _inner_text(content: Content, path: str, refuses_media: bool) -> str:
    """Of content inside a block: texts and images only, so that nothing nests."""
    inner = ((at, block) for at, block in blocks_of(content, path) if isinstance(block, TextBlock | ImageBlock))
    return BETWEEN.join(block_text(block, at, refuses_media=refuses_media) for at, block in inner)


def _document(block: DocumentBlock, path: str, refuses_media: bool) -> str:
    texts = (block.title, block.context, _source_text(block.source, path, refuses_media))
    return BETWEEN.join(text for text in texts if text)


def _source_text(source: Mapping[str, Any], path: str, refuses_media: bool) -> str:
    match source.get("type"):
        case "text":
            return converted(source, TextSource, f"{path}.source").data
        case "content":
            content = converted(source, ContentSource, f"{path}.source").content
            return _inner_text(content, f"{path}.source.content", refuses_media)
        case _:
            return unseen("document", path, is_refused=refuses_media)
