"""Request bodies in gzip, decompressed as they arrive: the limits of bodies count what they become."""

import asyncio
import zlib
from collections.abc import Sequence
from typing import Any

from litestar.types import Receive

from domain.errors import InvalidRequest

_PIECE_BYTES = 256 * 2**10
"""Bound on one step: a thousand bytes may become a million, and other requests wait meanwhile."""

_GZIP = frozenset({"gzip", "x-gzip"})
_ENCODINGS = _GZIP | {"", "identity"}


def is_readable(encodings: Sequence[str]) -> bool:
    """Returns whether bodies with these `Content-Encoding` headers are read."""
    return len(encodings) <= 1 and all(encoding.strip().lower() in _ENCODINGS for encoding in encodings)


def is_gzip(encoding: str) -> bool:
    return encoding.strip().lower() in _GZIP


def unzipped(receive: Receive) -> Receive:
    """Returns `receive` with the body decompressed. It raises InvalidRequest for a body that is not whole gzip."""
    inflater, compressed, num_received, is_last = zlib.decompressobj(wbits=31), b"", 0, False

    async def inflated() -> Any:
        nonlocal compressed, num_received, is_last
        if is_last and not compressed:
            return await receive()
        if not compressed:
            message = await receive()
            if message["type"] != "http.request":
                return message
            compressed, is_last = message.get("body", b""), not message.get("more_body")
            num_received += len(compressed)
        else:
            await asyncio.sleep(0)
        try:
            body = inflater.decompress(compressed, _PIECE_BYTES)
        except zlib.error as error:
            raise InvalidRequest(f"the body is not gzip, as its Content-Encoding says: {error}") from None
        compressed = inflater.unconsumed_tail
        if inflater.unused_data or (is_last and not compressed and num_received and not inflater.eof):
            raise InvalidRequest("the body is not one whole gzip stream, as its Content-Encoding says")
        return {"type": "http.request", "body": body, "more_body": bool(compressed) or not is_last}

    return inflated
