"""Images in request bodies: base64, data URLs, and URLs that are fetched later where the server allows it.

The bytes of a file are bounded here. Its type is read from its content, whatever the client calls it.
"""

import binascii

from domain.byte_size import format_bytes
from domain.errors import InvalidRequest
from domain.request.media import MAX_IMAGE_BYTES, Detail, Image

_MAX_URL_CHARS = 8_192
_DETAILS = {"low": Detail.LOW, "high": Detail.HIGH, "original": Detail.HIGH}


def url_image(url: str, path: str, detail: str | None = None) -> Image:
    """Returns the image of a data URL, or one that is to be fetched. Raises InvalidRequest, naming `path`."""
    scheme, _, rest = url.partition(":")
    if scheme.lower() == "data":
        kind, comma, data = rest.partition(",")
        if not comma or not kind.lower().rstrip().endswith(";base64"):
            raise InvalidRequest(f"{path}: a data URL must be like data:image/png;base64,...", param=path)
        return base64_image(data, path, detail)
    if scheme.lower() not in ("http", "https") or len(url) > _MAX_URL_CHARS:
        raise InvalidRequest(f"{path}: must be a data URL like data:image/png;base64,...", param=path)
    return Image(b"", _DETAILS.get(detail or "", Detail.AUTO), path, url)


def base64_image(text: str, path: str, detail: str | None = None) -> Image:
    """Raises InvalidRequest, naming `path`."""
    if len(text) > MAX_IMAGE_BYTES * 3 // 2:
        raise _too_large(path)
    try:
        data = binascii.a2b_base64("".join(text.split()) if "\n" in text else text, strict_mode=True)
    except ValueError as error:
        raise InvalidRequest(f"{path}: the image is not base64: {error}", param=path) from None
    if len(data) > MAX_IMAGE_BYTES:
        raise _too_large(path)
    image = Image(data, _DETAILS.get(detail or "", Detail.AUTO), path)
    _ = image.digest  # here, where a large body has a worker
    return image


def _too_large(path: str) -> InvalidRequest:
    message = f"{path}: the image has more than {format_bytes(MAX_IMAGE_BYTES)}; send a smaller one"
    return InvalidRequest(message, param=path)
