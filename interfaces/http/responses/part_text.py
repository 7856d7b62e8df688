"""Content parts as the text that a model reads. A string means the same as one part of text."""

from collections.abc import Iterator

from interfaces.http.json_body import by_type
from interfaces.http.responses.items import (
    PARTS,
    AudioPart,
    Content,
    FilePart,
    ImagePart,
    Part,
    Parts,
    RefusalPart,
    TextPart,
)
from interfaces.http.sampling_fields import unseen

_BETWEEN = "\n"


def text_of(content: Content, path: str, *, refuses_media: bool, between: str = _BETWEEN) -> str:
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


__all__ = ("text_of",)
