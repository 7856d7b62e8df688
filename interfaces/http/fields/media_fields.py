"""Images and files in request bodies: base64, data URLs, and URLs of images that are fetched later where the server
allows it.

The bytes of a file are bounded here. Its type is read from its content, whatever the client calls it.
"""

import binascii

from domain.byte_size import format_bytes
from domain.errors import InvalidRequest
from domain.request.file import MAX_FILE_BYTES, File
from domain.request.media import MAX_IMAGE_BYTES, Detail, Image

_MAX_URL_CHARS = 8_192
_DETAILS = {"low": Detail.LOW, "high": Detail.HIGH, "original": Detail.HIGH}


def image_of(text: str, path: str, detail: str | None = None, *, is_url: bool = True) -> Image:
    """Returns the image in a data URL or in base64, or one that is to be fetched. Raises InvalidRequest, naming
    `path`."""
    chosen = _DETAILS.get(detail or "", Detail.AUTO)
    if is_url:
        scheme, _, rest = text.partition(":")
        if scheme.lower() in ("http", "https") and len(text) <= _MAX_URL_CHARS:
            return Image(b"", chosen, path, text)
        kind, comma, text = rest.partition(",")
        if scheme.lower() != "data" or not comma or not kind.lower().rstrip().endswith(";base64"):
            raise InvalidRequest(f"{path}: must be a data URL like data:image/png;base64,...", param=path)
    image = Image(_decoded(text, path, "image", MAX_IMAGE_BYTES), chosen, path)
    _ = image.digest  # here, where a large body has a worker
    return image


def file_of(text: str, path: str, name: str = "") -> File:
    """Returns the file in a data URL or in base64. Raises InvalidRequest, naming `path`."""
    if text[:5].lower() == "data:":
        kind, comma, text = text.partition(",")
        if not comma or not kind.lower().rstrip().endswith(";base64"):
            raise InvalidRequest(f"{path}: must be a data URL like data:application/pdf;base64,...", param=path)
    file = File(_decoded(text, path, "file", MAX_FILE_BYTES), name, path)
    _ = file.digest
    return file


def _decoded(text: str, path: str, what: str, max_bytes: int) -> bytes:
    try:
        data = binascii.a2b_base64("".join(text.split()) if "\n" in text else text, strict_mode=True)
    except ValueError as error:
        raise InvalidRequest(f"{path}: the {what} is not base64: {error}", param=path) from None
    if len(data) > max_bytes:
        limit = format_bytes(max_bytes)
        raise InvalidRequest(f"{path}: the {what} has more than {limit}; send a smaller one", param=path)
    return data
