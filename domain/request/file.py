"""Files of a conversation whose text the model reads: PDF and plain text, placed in the text of a message.

The text is the same whenever the same file is sent, so that a prompt with it is reused like any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as attribute
from hashlib import sha256

from domain.printable import printable

MAX_FILES = 64
"""The most files of one request."""

MAX_FILE_BYTES = 20 << 20
"""The most bytes of one file."""

_MAX_NAME_CHARS = 120
_HEAD_BYTES = 1024
"""The bytes in which readers look for the mark of PDF."""


@dataclass(frozen=True, slots=True)
class File:
    """A file in a message. `name`: the client's name for the file, empty without one. `field`, `at`: as of an Image.
    Name, field and place are no part of the file's identity."""

    data: bytes = attribute(repr=False)
    name: str = attribute(default="", compare=False)
    field: str = attribute(default="", compare=False)
    at: int = attribute(default=0, compare=False)
    _digest: bytes = attribute(default=b"", compare=False, repr=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the data, computed once."""
        if not self._digest:
            object.__setattr__(self, "_digest", sha256(self.data).digest())
        return self._digest

    @property
    def is_pdf(self) -> bool:
        """The content decides, not the name or the type that the client gives."""
        return b"%PDF-" in self.data[:_HEAD_BYTES]

    def shown(self, pages: Sequence[str]) -> str:
        """Returns what the model reads in place of the file: its text, page by page if it has pages. The closing tag is
        where other questions about the file branch off (see the fork points of a prompt)."""
        name = printable(self.name, _MAX_NAME_CHARS).replace('"', "'")
        lines = [f'<file name="{name}">' if name else "<file>"]
        for number, page in enumerate(pages, 1):
            lines += [f"[page {number}]", page] if self.is_pdf else [page]
        return "\n".join((*lines, "</file>"))
