"""State payloads to bytes and back, losslessly: every (dtype, shape, content) returns bit for bit.

Threading: any thread. Errors: `decode` raises CodecError on anything it did not write itself; checksums are the
store's work, so a codec may trust bytes that passed one, and must still never read out of bounds.
"""

from collections.abc import Sequence
from typing import Protocol

from domain.prefix.record import StatePayload


class CodecError(Exception):
    """The bytes are not a frame this codec can decode (foreign, newer, truncated)."""


class StateCodec(Protocol):
    """Versioned, self-describing frames."""

    def encode(self, payload: StatePayload) -> Sequence[memoryview]:
        """The frame as consecutive buffers, not joined, so that the writer copies once."""
        ...

    def decode(self, frame: memoryview) -> StatePayload:
        """Inverse of `encode`, on the same bytes in one buffer. The result does not refer to it."""
        ...
