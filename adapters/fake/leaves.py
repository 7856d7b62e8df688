"""The toy model's cache objects, one class a state kind. Each reduces all it holds to one digest.

Sliced and windowed leaves keep one 64-bit value a token and digest value *and* position, so a slice that is shifted,
missing or from another chain changes the digest. A recurrent leaf keeps four words that roll over every token, so it
is right at exactly one position.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import ClassVar, Protocol

from domain.prefix.payload import HostPayload, TensorSpec

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """Scramble `value` (taken modulo 2**64) into 0 <= result < 2**64."""
    value &= MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def unit(value: int) -> float:
    """A number in (0, 1) that is a function of `value` alone."""
    return (mix(value) + 0.5) / 2.0**64


class Leaf(Protocol):
    """One cache object of one sequence. `digest` is a function of everything that later tokens may depend on;
    `can_cut`: it may go back to any position before its own."""

    can_cut: ClassVar[bool]
    digest: int

    def append(self, value: int) -> None:
        """Take in the next token's value (64 bits)."""
        ...

    def settle(self, chunk: int) -> None:
        """End of a chunk of `chunk` tokens: drop what is no longer needed."""
        ...

    def cut(self, position: int, before: int) -> None:
        """Hold no more than the tokens up to `position`; it stood at `before`. Raises ValueError where it cannot."""
        ...

    @property
    def size_bytes(self) -> int: ...


def _from_little_endian(data: memoryview) -> "array[int]":
    values = array("Q")
    values.frombytes(bytes(data))
    if sys.byteorder == "big":
        values.byteswap()
    return values


def to_bytes(values: Sequence[int]) -> memoryview:
    """Flat read-only little-endian bytes of 64-bit words."""
    packed = array("Q", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return memoryview(packed.tobytes())


class SlicedLeaf:
    """All values since position 0."""

    __slots__ = ("digest", "values")
    can_cut: ClassVar[bool] = True

    def __init__(self) -> None:
        self.values = array("Q")
        self.digest = 0

    def append(self, value: int) -> None:
        self.digest = (self.digest + mix(value + len(self.values) * GOLDEN)) & MASK
        self.values.append(value)

    def settle(self, chunk: int) -> None:
        pass

    def capture(self, start: int, end: int) -> "array[int]":
        return self.values[start:end]

    def refill(self, pieces: Sequence["array[int]"], position: int) -> None:
        """Hold exactly `pieces`, oldest first. Raises ValueError unless they cover `position` tokens."""
        self.values, self.digest = array("Q"), 0
        for piece in pieces:
            for value in piece:
                self.append(value)
        if len(self.values) != position:
            raise ValueError(f"sliced state covers {len(self.values)} of {position} tokens")

    def cut(self, position: int, before: int) -> None:
        if position < before:
            self.refill([self.values[:position]], position)

    @property
    def size_bytes(self) -> int:
        return len(self.values) * 8


class WindowedLeaf:
    """A token sees itself and `window - 1` before it. After a chunk of S tokens the last window - 1 + S are held."""

    __slots__ = ("_reach", "digest", "length", "values")
    can_cut: ClassVar[bool] = False

    def __init__(self, window: int) -> None:
        self._reach = window - 1
        self.values = array("Q")
        self.length = 0
        self.digest = 0

    def append(self, value: int) -> None:
        held, reach = self.values, self._reach
        self.digest = (self.digest + mix(value + self.length * GOLDEN)) & MASK
        held.append(value)
        self.length += 1
        if len(held) > reach:
            leaving = mix(held[-reach - 1] + (self.length - reach - 1) * GOLDEN)
            self.digest = (self.digest - leaving) & MASK

    def settle(self, chunk: int) -> None:
        surplus = len(self.values) - (self._reach + chunk)
        if surplus > 0:
            del self.values[:surplus]

    def capture(self, start: int, end: int) -> "array[int] | None":
        """The longest held suffix of [start, end); None unless that is all of it or at least window - 1 tokens."""
        first_held = self.length - len(self.values)
        first = max(start, first_held)
        if first > start and end - first < self._reach:
            return None
        return self.values[first - first_held : end - first_held]

    def refill(self, pieces: Sequence["array[int]"], position: int) -> None:
        """Hold the last tokens before `position` that the window still reaches, out of `pieces`, oldest first.

        A piece shorter than its span has at least window - 1 tokens, so nothing before it is looked at. Raises
        ValueError when the window is not covered.
        """
        reach = min(position, self._reach)
        tail: list[int] = []
        for piece in reversed(pieces):
            if len(tail) >= reach:
                break
            tail = [*piece, *tail]
        if len(tail) < reach:
            raise ValueError(f"windowed state covers {len(tail)} of {reach} tokens")
        self.values, self.digest = array("Q"), 0
        self.length = position - reach
        for value in tail[len(tail) - reach :]:
            self.append(value)

    def cut(self, position: int, before: int) -> None:
        if position != before:
            raise ValueError(f"windowed state of {before} tokens is of no use at {position}")

    @property
    def size_bytes(self) -> int:
        return len(self.values) * 8


class RecurrentLeaf:
    """Four words that every token changes; nothing of the past can be cut out of them."""

    __slots__ = ("digest", "words")
    can_cut: ClassVar[bool] = False

    def __init__(self) -> None:
        self.words = array("Q", (1, 2, 3, 4))
        self.digest = self._reduce()

    def _reduce(self) -> int:
        a, b, c, d = self.words
        return mix(a + 3 * b + 5 * c + 7 * d)

    def append(self, value: int) -> None:
        words = self.words
        words[0] = mix(words[0] ^ value)
        words[1] = (words[1] * 0x2545F4914F6CDD1D + value) & MASK
        words[2] = mix(words[2] + words[1])
        words[3] = (words[3] + (words[0] ^ words[2])) & MASK
        self.digest = self._reduce()

    def settle(self, chunk: int) -> None:
        pass

    def refill(self, words: "array[int]") -> None:
        if len(words) != 4:
            raise ValueError(f"recurrent state has {len(words)} words instead of 4")
        self.words = array("Q", words)
        self.digest = self._reduce()

    def cut(self, position: int, before: int) -> None:
        if position != before:
            raise ValueError(f"a recurrent state is at {before} only")

    @property
    def size_bytes(self) -> int:
        return 32


def pack(parts: Sequence["array[int]"], *, is_sliced: bool) -> HostPayload:
    """One payload of 64-bit words: shape (1, tokens, 1) for sliced parts, (1, words) for recurrent ones."""
    specs = tuple(TensorSpec("uint64", (1, len(part), 1) if is_sliced else (1, len(part))) for part in parts)
    return HostPayload(specs, tuple(to_bytes(part) for part in parts))


def unpack(buffers: Sequence[memoryview]) -> list["array[int]"]:
    """Inverse of `pack`."""
    return [_from_little_endian(buffer) for buffer in buffers]
