"""Messages in a stream of bytes: each has its length before it, four bytes, most significant first.

Sans-io. What is longer than `MAX_FRAME_BYTES` is no message of ours: something else was read.
"""

import struct

MAX_FRAME_BYTES = 1 << 30

_LENGTH = struct.Struct(">I")


class BrokenStream(Exception):
    """What came is no row of frames."""


def framed(payload: bytes) -> bytes:
    """A payload as it is sent. Raises BrokenStream for one that is too long."""
    if len(payload) > MAX_FRAME_BYTES:
        raise BrokenStream(f"a message of {len(payload)} bytes")
    return _LENGTH.pack(len(payload)) + payload


class Deframer:
    """Takes bytes as they come. Memory: one frame, and what was read behind it."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are whole by now. Raises BrokenStream."""
        held, payloads, at = self._held, list[bytes](), 0
        held += data
        while len(held) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(held, at)
            if length > MAX_FRAME_BYTES:
                raise BrokenStream(f"a message of {length} bytes is announced")
            end = at + _LENGTH.size + length
            if len(held) < end:
                break
            payloads.append(bytes(memoryview(held)[at + _LENGTH.size : end]))
            at = end
        if at:
            del held[:at]
        return payloads


__all__ = ("MAX_FRAME_BYTES", "BrokenStream", "Deframer", "framed")
