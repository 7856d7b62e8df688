"""PDF files to the text of their pages, by pypdf. Any thread; blocking, some ten milliseconds a page.

A file is untrusted: its process bounds time and memory, and pypdf the length of a stream that is decompressed. Pages
without text are empty; a file without any is refused, as a model would believe that the file is empty.
"""

import logging
from io import BytesIO

from pypdf import PasswordType, PdfReader
from pypdf.errors import DependencyError

from application.ports.file_reader import MAX_PAGES, MAX_TEXT_CHARS
from domain.errors import InvalidRequest

logging.getLogger("pypdf").disabled = True  # its remarks about damaged files are for the authors of the files


def read_pdf(data: bytes) -> tuple[str, ...]:
    """A ReadPdf."""
    try:
        pages = _pages(data)
    except (InvalidRequest, MemoryError):
        raise
    except DependencyError:  # of a cipher
        raise _refusal(_PROTECTED) from None
    except Exception as error:  # damaged files raise any
        named = ": ".join(filter(None, (type(error).__name__, str(error)[:100])))
        why = f"it is no PDF file that can be read ({named}); send the whole file, or its text"
        raise _refusal(why) from None
    if not any(pages):
        raise _refusal("it has no text and may be a scan; send its pages as images, or its text")
    return pages


_PROTECTED = "it is protected by a password or encrypted; save it without, or send its text"


def _pages(data: bytes) -> tuple[str, ...]:
    reader = PdfReader(BytesIO(data))
    if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
        raise _refusal(_PROTECTED)
    if (num_pages := reader.get_num_pages()) > MAX_PAGES:
        raise _refusal(f"it has {num_pages} pages, at most {MAX_PAGES} are read; send fewer")
    found, room = list[str](), MAX_TEXT_CHARS
    for page in reader.pages:
        text = _plain(page.extract_text())
        if (room := room - len(text)) < 0:
            raise _refusal(f"it has more than {MAX_TEXT_CHARS:,} characters; send fewer pages")
        found.append(text)
    return tuple(found)


def _plain(text: str) -> str:
    """Returns text that UTF-8 can encode, without null characters and spaces at the ends of lines."""
    text = text.encode(errors="replace").decode().replace("\0", "")
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def _refusal(why: str) -> InvalidRequest:
    return InvalidRequest(f"the file cannot be read: {why}")
