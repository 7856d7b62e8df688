"""Images in request bodies: base64, data URLs, and URLs that are fetched later where the server allows it.

The bytes of a file are bounded here. Its type is read from its content, whatever the client calls it.
"""

import binascii

from domain.byte_size import format_bytes
from domain.errors import InvalidRequest
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
    try:
        data = binascii.a2b_base64("".join(text.split()) if "\n" in text else text, strict_mode=True)
    except ValueError as error:
        raise InvalidRequest(f"{path}: the image is not base64: {error}", param=path) from None
    if len(data) > MAX_IMAGE_BYTES:
        limit = format_bytes(MAX_IMAGE_BYTES)
        raise InvalidRequest(f"{path}: the image has more than {limit}; send a smaller one", param=path)
    image = Image(data, chosen, path)
    _ = image.digest  # here, where a large body has a worker
    return image
