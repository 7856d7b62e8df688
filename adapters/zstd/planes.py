"""Planes: the bytes of many numbers, sorted by their meaning, so that the compressible part lies together.

    bfloat16   s eeeeeeee mmmmmmm          exponent: eeeeeeee     rest: smmmmmmm
    float16    s eeeee mmmmmmmmmm          high byte              low byte
    float32    as bfloat16, then 16 bits   exponent, rest         low: u16

Both directions work on at most CHUNK numbers with few numpy operations: each releases the interpreter's lock and has to
get it back. So an operation widens its input itself, BUFFER numbers at a time. They are exact inverses on every bit
pattern.
"""

from collections.abc import Callable, Sequence
from threading import local
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adapters.zstd.frame import BFLOAT16, FLOAT16, FLOAT32, IDENTITY

Bytes: TypeAlias = NDArray[np.uint8]

CHUNK = 1 << 21
"""Numbers worked on at a time. Fewer stay in a nearer cache, but where a dozen threads decode they wait for the
interpreter's lock: 1 << 18 takes 1.9 times as long on 16 processors, and about as long on two."""
BUFFER = 1 << 12
"""Numbers that numpy widens at a time (`numpy.setbufsize`): its buffers fit the smallest cache, so an operation passes
over a chunk in memory once. With numpy's own default a merge takes a third longer."""
_REST = np.uint16(0x807F)
_SEVEN, _EIGHT, _SIXTEEN = np.uint16(7), np.uint16(8), np.uint32(16)


class _Scratch(local):
    """Scratch arrays of the calling thread."""

    def __init__(self) -> None:
        self.first = np.empty(CHUNK, np.uint16)
        self.second = np.empty(CHUNK, np.uint16)


_scratch = _Scratch()


def _copy(source: Bytes, planes: Sequence[Bytes]) -> None:
    np.copyto(planes[0], source)


def _copy_back(planes: Sequence[Bytes], out: Bytes) -> None:
    np.copyto(out, planes[0])


def _split_bfloat16(source: Bytes, planes: Sequence[Bytes]) -> None:
    _split_words(source.view(np.uint16), planes[0], planes[1])


def _split_words(words: NDArray[np.uint16], exponent: Bytes, rest: Bytes) -> None:
    second = _scratch.second[: words.size]
    np.right_shift(words, _SEVEN, out=exponent, casting="unsafe")
    np.bitwise_and(words, _REST, out=second)
    # The sign moves to the top bit of the low byte.
    np.bitwise_or(second, second >> _EIGHT, out=rest, casting="unsafe")


def _merge_bfloat16(planes: Sequence[Bytes], out: Bytes) -> None:
    _merge_words(planes[0], planes[1], out.view(np.uint16))


def _merge_words(exponent: Bytes, rest: Bytes, words: NDArray[np.uint16]) -> None:
    second = _scratch.second[: words.size]
    np.left_shift(exponent, _SEVEN, out=words, dtype=np.uint16)
    # Read as signed, the rest's top bit spreads over bits 7 to 15; the mask keeps it where the sign belongs.
    np.bitwise_and(rest.view(np.int8), _REST.view(np.int16), out=second.view(np.int16), dtype=np.int16)
    np.bitwise_or(words, second, out=words)


def _split_float16(source: Bytes, planes: Sequence[Bytes]) -> None:
    words = source.view(np.uint16)
    np.right_shift(words, _EIGHT, out=planes[0], casting="unsafe")
    np.copyto(planes[1], words, casting="unsafe")


def _merge_float16(planes: Sequence[Bytes], out: Bytes) -> None:
    words = out.view(np.uint16)
    np.left_shift(planes[0], _EIGHT, out=words, dtype=np.uint16)
    np.bitwise_or(words, planes[1], out=words)


def _split_float32(source: Bytes, planes: Sequence[Bytes]) -> None:
    longs = source.view(np.uint32)
    upper = _scratch.first[: longs.size]
    np.right_shift(longs, _SIXTEEN, out=upper, casting="unsafe")
    _split_words(upper, planes[0], planes[1])
    np.copyto(planes[2].view(np.uint16), longs, casting="unsafe")


def _merge_float32(planes: Sequence[Bytes], out: Bytes) -> None:
    longs = out.view(np.uint32)
    upper = _scratch.first[: longs.size]
    _merge_words(planes[0], planes[1], upper)
    np.left_shift(upper, _SIXTEEN, out=longs, dtype=np.uint32)
    np.bitwise_or(longs, planes[2].view(np.uint16), out=longs)


Split: TypeAlias = Callable[[Bytes, Sequence[Bytes]], Any]
Merge: TypeAlias = Callable[[Sequence[Bytes], Bytes], Any]

SPLITS: dict[int, Split] = {
    IDENTITY: _copy,
    BFLOAT16: _split_bfloat16,
    FLOAT16: _split_float16,
    FLOAT32: _split_float32,
}
"""By transform: writes the planes of at most CHUNK numbers, given as bytes."""

MERGES: dict[int, Merge] = {
    IDENTITY: _copy_back,
    BFLOAT16: _merge_bfloat16,
    FLOAT16: _merge_float16,
    FLOAT32: _merge_float32,
}
"""By transform: the inverse."""
