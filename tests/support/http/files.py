"""PDF files as tests make them, requests with files in every dialect that has them, and a reader without a process."""

import zlib
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from domain.errors import FileUnreadable
from domain.request.file import File


def pdf(*pages: str, stream: bytes | None = None) -> bytes:
    """Returns a PDF file with a line of Latin text on each page. `stream`: the content of each page instead,
    compressed."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = list[str]()
    for text in pages:
        escaped = text.translate({ord(char): f"\\{char}" for char in "()\\"})
        drawn = f"BT /F1 12 Tf 72 720 Td ({escaped}) Tj ET".encode("latin-1") if text else b""
        content = zlib.compress(drawn if stream is None else stream, 9)
        number = len(objects) + 1
        kids.append(f"{number} 0 R")
        fields = f"/Type /Page /Parent 2 0 R /Resources << /Font << /F1 3 0 R >> >> /Contents {number + 1} 0 R"
        objects.append(f"<< {fields} /MediaBox [0 0 612 792] >>".encode())
        head = f"<< /Length {len(content)} /Filter /FlateDecode >>".encode()
        objects.append(head + b"\nstream\n" + content + b"\nendstream")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    out, places = b"%PDF-1.7\n", list[int]()
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n".encode() + body + b"\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    num = len(objects) + 1
    head = f"xref\n0 {num}\n0000000000 65535 f \n{table}trailer << /Size {num} /Root 1 0 R >>\n"
    return out + head.encode() + f"startxref\n{len(out)}\n%%EOF\n".encode()


def pdf_bomb() -> bytes:
    """Returns some fifty kilobytes that take half a minute to read."""
    return pdf("bomb", stream=b"BT /F1 12 Tf 72 720 Td (a) Tj ET " * 800_000)


@dataclass(frozen=True)
class Sending:
    """A question about a file in one dialect that takes files. `body`: of the file, its name and the question, as one
    message of a user. `field` names the file."""

    path: str
    body: Callable[[bytes, str, str], dict[str, Any]]
    field: str


def file_url(data: bytes, kind: str = "application/pdf") -> str:
    return f"data:{kind};base64,{b64encode(data).decode()}"


def openai_file(data: bytes, name: str) -> dict[str, Any]:
    return {"type": "file", "file": {"filename": name, "file_data": file_url(data)}}


def responses_file(data: bytes, name: str) -> dict[str, Any]:
    return {"type": "input_file", "filename": name, "file_data": file_url(data)}


def document(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "application/pdf", "data": b64encode(data).decode()}
    return {"type": "document", "source": source}


SENDING = {
    "chat": Sending(
        "/v1/chat/completions",
        lambda data, name, text: {
            "messages": [{"role": "user", "content": [openai_file(data, name), {"type": "text", "text": text}]}]
        },
        "messages[0].content[0].file.file_data",
    ),
    "responses": Sending(
        "/v1/responses",
        lambda data, name, text: {
            "input": [{"role": "user", "content": [responses_file(data, name), {"type": "input_text", "text": text}]}]
        },
        "input[0].content[0].file_data",
    ),
    "messages": Sending(
        "/v1/messages",
        lambda data, _name, text: {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [document(data), {"type": "text", "text": text}]}],
        },
        "messages[0].content[0].source.data",
    ),
}
"""By dialect."""


class ToyFiles:
    """A FileReader of files whose pages follow `%PDF-`, with form feeds between them. A page `broken` is refused."""

    def __init__(self) -> None:
        self.read: list[bytes] = []

    def pages(self, file: File) -> tuple[str, ...]:
        self.read.append(file.data)
        pages = tuple(file.data.decode().removeprefix("%PDF-").split("\f"))
        if "broken" in pages:
            raise FileUnreadable(f"{file.field}: the file cannot be read: broken", param=file.field)
        return pages

    def close(self) -> None:
        """Ends nothing."""
