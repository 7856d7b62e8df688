"""Images of a conversation as the client sent them: encoded files, placed in the text of a message.

An image is identified by the digest of its bytes and its detail. Two URLs, turns or dialects that hold the same file
hold the same image.
"""

from dataclasses import dataclass
from dataclasses import field as attribute
from enum import Enum
from hashlib import sha256

MAX_IMAGES = 256
"""The most images of one request."""

MAX_IMAGE_BYTES = 20 << 20
"""The most bytes of one image file."""


class Detail(Enum):
    """The resolution at which a client wants an image to be seen; a model may have one resolution only."""

    AUTO = "auto"
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Image:
    """An encoded image file in a message. `field`: the client's name for it, such as `messages[2].content[1]`, for
    errors. `url`: where `data`, empty until then, is to be fetched; empty afterwards. `at`: the number of characters of
    the message's content before it. Field and place are no part of the image's identity."""

    data: bytes = attribute(repr=False)
    detail: Detail = Detail.AUTO
    field: str = attribute(default="", compare=False)
    url: str = ""
    at: int = attribute(default=0, compare=False)
    _digest: bytes = attribute(default=b"", compare=False, repr=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 over detail and data, computed once: a millisecond a megabyte."""
        if not self._digest:
            object.__setattr__(self, "_digest", sha256(self.detail.value.encode() + b"\0" + self.data).digest())
        return self._digest


def left_out(what: str, why: str = "this model reads text only") -> str:
    """Returns the text that a model reads instead of media. `what`: singular, as "image"."""
    return f"[{what} left out: {why}]"
