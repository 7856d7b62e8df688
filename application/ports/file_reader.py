"""The port of files whose text a model reads. PDF files are read in processes that hold nothing else."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from domain.request.file import File

MAX_PAGES = 2_000

MAX_TEXT_CHARS = 2_000_000
"""The most characters of one file's text: half a million tokens."""

ReadPdf: TypeAlias = Callable[[bytes], tuple[str, ...]]
"""Returns the text of each page. Blocking, some ten milliseconds a page. Raises InvalidRequest that says why there is
none, beginning with "the file cannot be read", and MemoryError."""


class FileReader(Protocol):
    """Any thread; blocking."""

    def pages(self, file: File) -> tuple[str, ...]:
        """Returns the text of each page of a PDF file: at most MAX_PAGES with MAX_TEXT_CHARS. The same file has the
        same text. Raises FileUnreadable that names `file.field`, and ServerUnavailable where the file is not the
        cause."""
        ...

    def close(self) -> None:
        """Ends the processes that read files. Calls under way fail. Idempotent."""
        ...
