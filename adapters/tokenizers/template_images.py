"""The two ways in which chat templates take images, found by rendering one.

    parts   the content of a user's message is a list: {"type": "image"}, {"type": "text", "text": ...}
    text    content is text, with what stands for an image in it

Templates that take parts take them of users only, if at all: of a tool's result they write the list as Python does. So
images of other roles stand in the text, as the template writes them for a user: with the marks around them, if any.

In the text an image is a stand-in that no client can write, until the template has rendered it: what a client writes is
text, also where it spells the placeholder.
"""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from domain.errors import TemplateFailed
from domain.request.chat import ChatMessage, Media, Role
from domain.request.media import Image

STAND_IN = f"cairn-image-{secrets.token_hex(16)}"

_BEFORE, _AFTER = "zebra", "yacht"


@dataclass(frozen=True, slots=True)
class ImageForm:
    """The form of images for one template. `takes_parts`: in messages of users. `written`: the template's text for an
    image, which holds one placeholder."""

    takes_parts: bool
    written: str

    def content_of(self, message: ChatMessage) -> "str | list[dict[str, str]]":
        """Returns the content of a message with images, in the shape that the template takes."""
        if self.takes_parts and message.role is Role.USER:
            return _parts(message.pieces)
        return "".join(piece if isinstance(piece, str) else STAND_IN for piece in message.pieces)


def find_image_form(render: Callable[[object], str], placeholder: str) -> ImageForm:
    """Returns the form that a template takes. `render`: the text of a user's message with this content, empty where the
    template refuses it. Raises TemplateFailed for a template that shows no images."""
    text = render(_parts((_BEFORE, Image(b""), _AFTER)))
    if text.count(placeholder) == 1 and _BEFORE in text and _AFTER in text:
        between = text.partition(_BEFORE)[2].partition(_AFTER)[0]
        return ImageForm(takes_parts=True, written=between if placeholder in between else placeholder)
    verbatim = f"{_BEFORE}{placeholder}{_AFTER}"
    if verbatim in render(verbatim):
        return ImageForm(takes_parts=False, written=placeholder)
    raise TemplateFailed(
        "the model's chat template shows no images: it neither takes image parts nor writes content as it is; leave"
        " them out, or add a chat_template.jinja that shows them to the model's folder",
        param="messages",
    )


def _parts(pieces: Iterable[str | Media]) -> list[dict[str, str]]:
    return [{"type": "text", "text": piece} if isinstance(piece, str) else {"type": "image"} for piece in pieces]
