"""Prompts of the toy model with images in them."""

from adapters.fake.tokenizer import FakeTokenizer
from adapters.fake.vision import ToyImages
from application.ports.tokenizer import EncodedPrompt
from domain.id_row import IdRow
from domain.prefix.prompt_content import MediaSpan
from domain.request.media import Image

Parts = str | tuple[str | Image, ...]

FILES: dict[bytes, Image] = {}
"""The images of all prompts that were made, by the digests of their spans."""


def prompt_of(parts: Parts) -> EncodedPrompt:
    """Returns texts and images as one prompt."""
    rows, media, at = list[IdRow](), list[MediaSpan](), 0
    for part in (parts,) if isinstance(parts, str) else parts:
        if isinstance(part, str):
            row = FakeTokenizer().encode(part).token_ids
        else:
            measured = ToyImages().process(part).tokens
            FILES[measured.digest] = part
            media.append(measured.placed(at, len(media) + 1))
            row = measured.token_ids
        rows.append(row)
        at += len(row)
    return EncodedPrompt(IdRow.joined(rows), media=tuple(media))


def text_of(parts: Parts) -> str:
    """Returns the texts without the images."""
    return "".join(part for part in parts if isinstance(part, str))
