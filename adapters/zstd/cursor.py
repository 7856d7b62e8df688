"""A frame that lies in several buffers, read from front to back without joining them."""

from collections import deque
from collections.abc import Iterable

from application.ports.state_codec import CodecError


class FrameCursor:
    """Consecutive buffers and a position in them. One thread."""

    def __init__(self, buffers: Iterable[memoryview]) -> None:
        self._buffers = deque(buffer for buffer in buffers if buffer.nbytes)
        self._remaining = sum(buffer.nbytes for buffer in self._buffers)

    @property
    def remaining(self) -> int:
        """Bytes ahead."""
        return self._remaining

    @property
    def run(self) -> int:
        """Bytes ahead that lie together."""
        return self._buffers[0].nbytes if self._buffers else 0

    def read(self, size_bytes: int) -> memoryview:
        """Up to `size_bytes` as they lie; empty at the end. zstd reads its input through this."""
        if not self._buffers:
            return memoryview(b"")
        first = self._buffers.popleft()
        if first.nbytes > size_bytes:
            self._buffers.appendleft(first[size_bytes:])
            first = first[:size_bytes]
        self._remaining -= first.nbytes
        return first

    def take(self, size_bytes: int) -> memoryview:
        """Exactly that many, copied only where they do not lie together. Raises CodecError."""
        if self._buffers and (first := self._buffers[0]).nbytes > size_bytes:
            self._buffers[0] = first[size_bytes:]
            self._remaining -= size_bytes
            return first[:size_bytes]
        parts = self.parts(size_bytes)
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def parts(self, size_bytes: int) -> list[memoryview]:
        """Exactly that many as they lie. Raises CodecError, and has not moved then."""
        if size_bytes > self._remaining:
            raise CodecError("a state frame is truncated")
        found: list[memoryview] = []
        while size_bytes:
            found.append(self.read(size_bytes))
            size_bytes -= found[-1].nbytes
        return found

    def peek(self, size_bytes: int) -> bytes:
        """Up to that many, without moving."""
        found = b""
        for buffer in self._buffers:
            found += buffer[: size_bytes - len(found)]
            if len(found) == size_bytes:
                break
        return found


__all__ = ("FrameCursor",)
