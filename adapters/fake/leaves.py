"""The toy model's cache objects. Each reduces all that it holds to one digest, on which every later token depends.

Token leaves, sliced and windowed, keep one 64-bit value a token and digest value and position, so a slice that is
shifted, missing or from another chain changes the digest. A recurrent leaf keeps four words that roll over every token,
so it is valid at exactly one position.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from domain.prefix.record import HostPayload, TensorSpec

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
RECURRENT_WORDS = 4
WORD_BYTES = 8

if TYPE_CHECKING:
    Words: TypeAlias = array[int]
else:
    Words = array


def mix(value: int) -> int:
    """Scrambles `value` (taken modulo 2**64) into 0 <= result < 2**64."""
    value &= MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def unit(value: int) -> float:
    """A number in (0, 1) that is a function of `value` alone."""
    return (mix(value) + 0.5) / 2.0**64


class TokenLeaf:
    """The values of all tokens since position 0, or of a window: a token sees itself and `window - 1` before it.

    After a chunk of S tokens a window holds the last window - 1 + S. `can_cut`: the leaf can go back to any position.
    """

    __slots__ = ("_reach", "can_cut", "digest", "length", "values")

    def __init__(self, window: int | None = None) -> None:
        self._reach = None if window is None else window - 1
        self.can_cut = window is None
        self.values: Words = array("Q")
        self.length = 0
        self.digest = 0

    @property
    def size_bytes(self) -> int:
        return len(self.values) * WORD_BYTES

    def append(self, value: int) -> None:
        """Adds the next token's value (64 bits)."""
        held, reach = self.values, self._reach
        self.digest = (self.digest + mix(value + self.length * GOLDEN)) & MASK
        held.append(value)
        self.length += 1
        if reach is not None and len(held) > reach:
            leaving = mix(held[-reach - 1] + (self.length - reach - 1) * GOLDEN)
            self.digest = (self.digest - leaving) & MASK

    def settle(self, chunk: int) -> None:
        """Drops what is not needed after a chunk of `chunk` tokens."""
        if self._reach is not None:
            del self.values[: max(0, len(self.values) - (self._reach + chunk))]

    def capture(self, start: int, end: int) -> Words | None:
        """The longest held suffix of [start, end); None unless that is all of it or at least window - 1 tokens."""
        first_held = self.length - len(self.values)
        first = max(start, first_held)
        if first > start and end - first < (self._reach or 0):
            return None
        return self.values[first - first_held : end - first_held]

    def refill(self, pieces: Sequence[Words], position: int) -> None:
        """Holds the tokens before `position` out of `pieces`, oldest first: all of them, or those that the window still
        reaches. A windowed piece shorter than its span has at least window - 1 tokens, so nothing before it is used.
        Raises ValueError if tokens are missing."""
        reach = position if self._reach is None else min(position, self._reach)
        tail: list[int] = []
        for piece in reversed(pieces):
            if len(tail) >= reach and self._reach is not None:
                break
            tail = [*piece, *tail]
        if len(tail) < reach or (self._reach is None and len(tail) != reach):
            raise ValueError(f"the state covers {len(tail)} tokens instead of {reach}")
        self.values, self.digest, self.length = array("Q"), 0, position - reach
        for value in tail[len(tail) - reach :]:
            self.append(value)

    def cut(self, position: int, before: int) -> None:
        """Goes back from `before` to `position`. Raises ValueError if the leaf cannot."""
        if position == before:
            return
        if not self.can_cut:
            raise ValueError(f"windowed state at {before} cannot be cut to {position}")
        self.refill([self.values[:position]], position)


class RecurrentLeaf:
    """Four words that every token changes, so nothing can be cut out of them."""

    __slots__ = ("digest", "words")
    can_cut = False
    size_bytes = RECURRENT_WORDS * WORD_BYTES

    def __init__(self) -> None:
        self.words: Words = array("Q", (1, 2, 3, 4))
        self.digest = self._reduce()

    def append(self, value: int) -> None:
        """Takes in the next token's value (64 bits)."""
        words = self.words
        words[0] = mix(words[0] ^ value)
        words[1] = (words[1] * 0x2545F4914F6CDD1D + value) & MASK
        words[2] = mix(words[2] + words[1])
        words[3] = (words[3] + (words[0] ^ words[2])) & MASK
        self.digest = self._reduce()

    def settle(self, chunk: int) -> None:
        """Keeps everything: the state has a fixed size."""

    def refill(self, pieces: Sequence[Words], position: int) -> None:
        """Holds the words of the only piece. Raises ValueError unless there are four."""
        (words,) = pieces
        if len(words) != RECURRENT_WORDS:
            raise ValueError(f"recurrent state has {len(words)} words instead of {RECURRENT_WORDS}")
        self.words = array("Q", words)
        self.digest = self._reduce()

    def cut(self, position: int, before: int) -> None:
        """Checks that `position` is `before`. Raises ValueError otherwise."""
        if position != before:
            raise ValueError(f"recurrent state at {before} cannot be cut to {position}")

    def _reduce(self) -> int:
        a, b, c, d = self.words
        return mix(a + 3 * b + 5 * c + 7 * d)


Leaf: TypeAlias = TokenLeaf | RecurrentLeaf


def pack(parts: Sequence[Words], *, is_sliced: bool) -> HostPayload:
    """One payload of 64-bit words: shape (1, tokens, 1) for token leaves, (1, words) for recurrent ones."""
    specs = tuple(TensorSpec("uint64", (1, len(part), 1) if is_sliced else (1, len(part))) for part in parts)
    return HostPayload(specs, tuple(memoryview(_little_endian(part).tobytes()) for part in parts))


def unpack(buffers: Sequence[memoryview]) -> list[Words]:
    """The inverse of `pack`."""
    found: list[Words] = []
    for buffer in buffers:
        values = array("Q")
        values.frombytes(bytes(buffer))
        found.append(_little_endian(values))
    return found


def _little_endian(words: Sequence[int]) -> Words:
    found = array("Q", words)
    if sys.byteorder == "big":
        found.byteswap()
    return found
