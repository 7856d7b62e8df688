"""Planes: the bytes of many numbers, sorted by what they mean, so that the compressible part lies together.

    bfloat16   s eeeeeeee mmmmmmm          exponent: eeeeeeee     rest: smmmmmmm
    float16    s eeeee mmmmmmmmmm          high byte              low byte
    float32    as bfloat16, then 16 bits   exponent, rest         low: u16

Everything runs in chunks that stay in the cache, through scratch arrays of the calling thread, with numpy operations
that release the GIL: few, because each has to get it back. Splitting and merging are exact inverses on every bit
pattern; nothing here looks at values.
"""

from threading import local

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint16]
Longs = npt.NDArray[np.uint32]

CHUNK = 1 << 20
"""Numbers worked on at a time: few enough to stay in the processor's cache, many enough that threads seldom meet at the
interpreter's lock."""
_REST = np.uint16(0x807F)
_SEVEN = np.uint16(7)
_EIGHT = np.uint16(8)


class _Scratch(local):
    def __init__(self) -> None:
        self.first = np.empty(CHUNK, np.uint16)
        self.second = np.empty(CHUNK, np.uint16)
        self.wide = np.empty(CHUNK, np.uint32)


_scratch = _Scratch()


def split_bfloat16(words: Words, exponent: Bytes, rest: Bytes) -> None:
    """All three of one length; `exponent` and `rest` are written."""
    for start in range(0, words.size, CHUNK):
        chunk = words[start : start + CHUNK]
        first, second = _scratch.first[: chunk.size], _scratch.second[: chunk.size]
        np.right_shift(chunk, _SEVEN, out=exponent[start : start + CHUNK], casting="unsafe")
        np.bitwise_and(chunk, _REST, out=first)
        np.right_shift(first, _EIGHT, out=second)  # the sign, to the top bit of the low byte
        np.bitwise_or(first, second, out=rest[start : start + CHUNK], casting="unsafe")


def merge_bfloat16(exponent: Bytes, rest: Bytes, words: Words) -> None:
    """Inverse of `split_bfloat16`, for at most CHUNK numbers; `words` is written."""
    second = _scratch.second[: words.size]
    np.copyto(words, exponent)
    # Read as signed, the rest's top bit spreads over bits 7 to 15; the mask keeps it where the sign belongs.
    np.copyto(second.view(np.int16), rest.view(np.int8))
    np.left_shift(words, _SEVEN, out=words)
    np.bitwise_and(second, _REST, out=second)
    np.bitwise_or(words, second, out=words)


def split_float16(words: Words, high: Bytes, low: Bytes) -> None:
    for start in range(0, words.size, CHUNK):
        chunk = words[start : start + CHUNK]
        first = _scratch.first[: chunk.size]
        np.right_shift(chunk, _EIGHT, out=first)
        np.copyto(high[start : start + CHUNK], first, casting="unsafe")
        np.copyto(low[start : start + CHUNK], chunk, casting="unsafe")


def merge_float16(high: Bytes, low: Bytes, words: Words) -> None:
    """Inverse of `split_float16`, for at most CHUNK numbers."""
    second = _scratch.second[: words.size]
    np.copyto(words, high)
    np.left_shift(words, _EIGHT, out=words)
    np.copyto(second, low)
    np.bitwise_or(words, second, out=words)


def split_float32(longs: Longs, exponent: Bytes, rest: Bytes, low: Words) -> None:
    upper = np.empty(min(CHUNK, longs.size), np.uint16)
    for start in range(0, longs.size, CHUNK):
        stop = min(start + CHUNK, longs.size)
        wide = _scratch.wide[: stop - start]
        np.right_shift(longs[start:stop], np.uint32(16), out=wide)
        np.copyto(upper[: stop - start], wide, casting="unsafe")
        split_bfloat16(upper[: stop - start], exponent[start:stop], rest[start:stop])
        np.copyto(low[start:stop], longs[start:stop], casting="unsafe")


def merge_float32(exponent: Bytes, rest: Bytes, low: Words, longs: Longs) -> None:
    """Inverse of `split_float32`, for at most CHUNK numbers."""
    upper, wide = _scratch.first[: longs.size], _scratch.wide[: longs.size]
    merge_bfloat16(exponent, rest, upper)
    np.copyto(longs, upper)
    np.left_shift(longs, np.uint32(16), out=longs)
    np.copyto(wide, low)
    np.bitwise_or(longs, wide, out=longs)
