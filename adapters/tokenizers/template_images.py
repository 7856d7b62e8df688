"""The two ways in which chat templates take images, found by rendering one.

    parts   the content of a user's message is a list: {"type": "image"}, {"type": "text", "text": ...}
    text    content is text, with what stands for an image in it

Templates that take parts take them of users only, if at all: of a tool's result they write the list as Python does. So
images of other roles stand in the text, as the template writes them for a user: with the marks around them, if any.

In the text an image is a stand-in that no client can write, until the template has rendered it: what a client writes is
text, also where it spells the placeholder.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from domain.request.chat import ChatMessage, Role
from domain.request.media import Image

STAND_IN = f"cairn-image-{secrets.token_hex(16)}"

_BEFORE, _AFTER = "zebra", "yacht"
_TEXT_PART, _IMAGE_PART = {"type": "text"}, {"type": "image"}


@dataclass(frozen=True, slots=True)
class ImageForm:
    """The form of images for one template. `takes_parts`: in messages of users. `written`: the template's text for an
    image, which holds one placeholder."""

    takes_parts: bool
    written: str

    def content_of(self, message: ChatMessage) -> "str | list[dict[str, str]]":
        """Returns the content of a message with images, in the shape that the template takes."""
        if self.takes_parts and message.role is Role.USER:
            return [
                dict(_IMAGE_PART) if isinstance(piece, Image) else {**_TEXT_PART, "text": piece}
                for piece in message.pieces
            ]
        return "".join(STAND_IN if isinstance(piece, Image) else piece for piece in message.pieces)

    def rendered(self, text: str) -> str:
        """Returns a rendered text with images in place of their stand-ins."""
        return text.replace(STAND_IN, self.written)


def find_image_form(apply: Callable[..., str], placeholder: str) -> ImageForm | None:
    """Returns the form that a template takes; None for a template that shows no images."""
    parts = [{**_TEXT_PART, "text": _BEFORE}, dict(_IMAGE_PART), {**_TEXT_PART, "text": _AFTER}]
    text = _rendered(apply, parts)
    if text.count(placeholder) == 1 and _BEFORE in text and _AFTER in text:
        between = text.partition(_BEFORE)[2].partition(_AFTER)[0]
        return ImageForm(takes_parts=True, written=between if placeholder in between else placeholder)
    is_verbatim = f"{_BEFORE}{placeholder}{_AFTER}" in _rendered(apply, f"{_BEFORE}{placeholder}{_AFTER}")
    return ImageForm(takes_parts=False, written=placeholder) if is_verbatim else None


def _rendered(apply: Callable[..., str], content: object) -> str:
    messages = [{"role": Role.USER.value, "content": content}]
    try:
        return apply(messages, tools=None, add_generation_prompt=True)
    except Exception:
        return ""
