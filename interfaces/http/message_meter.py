"""Counts what arrives of one request while it is parsed; sans-io.

Bytes of which nothing becomes (half a header, an endless chunk extension) are held by the parser or by nobody, and show
in no callback: they are counted as they are fed, and anew after each thing that did become of them.
"""

from enum import Enum

from interfaces.http.connection_limits import (
    HEADERS_TOO_LARGE,
    MALFORMED,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_TARGET_BYTES,
    MIN_BODY_BYTES_S,
    TARGET_TOO_LONG,
)
from interfaces.http.errors import Problem

MAX_LENGTH_DIGITS = 15
"""Of an announced length; a longer one is refused elsewhere, and here only not counted out."""


class Phase(Enum):
    """Where in a request the input is. BETWEEN: none has begun that is not complete."""

    BETWEEN = "between"
    HEAD = "head"
    BODY = "body"


class MessageMeter:
    """Fed by the parser's callbacks. Each returns the problem that ends the connection, if there is one. `rest_bytes`:
    of a body whose length was announced, what is still to come."""

    __slots__ = (
        "_announced_bytes",
        "_header_bytes",
        "_num_headers",
        "_silent_bytes",
        "_target_bytes",
        "_unspent_bytes",
        "phase",
        "rest_bytes",
    )

    def __init__(self) -> None:
        self.phase = Phase.BETWEEN
        self._unspent_bytes = self._announced_bytes = self.rest_bytes = 0
        self._silent_bytes = self._header_bytes = self._num_headers = self._target_bytes = 0

    def begin(self) -> None:
        self.phase = Phase.HEAD
        self._unspent_bytes = self._announced_bytes = self.rest_bytes = 0
        self._silent_bytes = self._header_bytes = self._num_headers = self._target_bytes = 0

    def fed(self, num_bytes: int) -> Problem | None:
        """After each piece of input, whatever became of it."""
        self._silent_bytes += num_bytes
        if self._silent_bytes <= MAX_HEADER_BYTES:
            return None
        return HEADERS_TOO_LARGE if self.phase is Phase.HEAD else MALFORMED

    def target(self, num_bytes: int) -> Problem | None:
        self._silent_bytes = 0
        self._target_bytes += num_bytes
        return TARGET_TOO_LONG if self._target_bytes > MAX_TARGET_BYTES else None

    def header(self, name: bytes, value: bytes) -> Problem | None:
        """Of a trailer, too."""
        self._silent_bytes = 0
        self._num_headers += 1
        self._header_bytes += len(name) + len(value) + len(b": \r\n")
        if self.phase is Phase.HEAD and name.lower() == b"content-length" and value.isdigit():
            self._announced_bytes = int(value[:MAX_LENGTH_DIGITS])
        if self._num_headers <= MAX_HEADERS and self._header_bytes <= MAX_HEADER_BYTES:
            return None
        return HEADERS_TOO_LARGE if self.phase is Phase.HEAD else MALFORMED

    def headers_complete(self) -> None:
        self._silent_bytes = 0
        self.rest_bytes = self._announced_bytes
        self.phase = Phase.BODY

    def body(self, num_bytes: int) -> None:
        self._silent_bytes = 0
        self._unspent_bytes += num_bytes
        self.rest_bytes = max(0, self.rest_bytes - num_bytes)

    def spend_body(self, most_s: float) -> float:
        """More time in seconds for what has come of the body since the last call, `most_s` at most: what came fast buys
        no silence."""
        num_bytes, self._unspent_bytes = self._unspent_bytes, 0
        return min(num_bytes / MIN_BODY_BYTES_S, most_s)

    def complete(self) -> None:
        self._silent_bytes = self.rest_bytes = 0
        self.phase = Phase.BETWEEN


__all__ = ("MessageMeter", "Phase")
