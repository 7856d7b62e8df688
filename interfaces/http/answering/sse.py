"""Server-sent events as bytes. Comment lines keep a connection alive and are ignored by every client."""

DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""The headers that keep caches and proxies from buffering a stream."""


def event(payload: bytes, name: str = "") -> bytes:
    """Returns one event, with a line `event: name` if its dialect uses one. `payload` is JSON on a single line."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + payload + b"\n\n"


def comment(text: str) -> bytes:
    return f": {text}\n\n".encode()
