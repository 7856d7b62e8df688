"""Planes: the bytes of many numbers, sorted by what they mean, so that the compressible part lies together.

    bfloat16   s eeeeeeee mmmmmmm          exponent: eeeeeeee     rest: smmmmmmm
    float16    s eeeee mmmmmmmmmm          high byte              low byte
    float32    as bfloat16, then 16 bits   exponent, rest         low: u16

Everything runs in chunks that stay in the cache, through scratch arrays of the calling thread, with numpy operations
that release the GIL. Splitting and merging are exact inverses on every bit pattern; nothing here looks at values.
"""

from threading import local

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint16]
Longs = npt.NDArray[np.uint32]

_CHUNK = 1 << 17
_REST = np.uint16(0x807F)
_SEVEN = np.uint16(7)
_EIGHT = np.uint16(8)


class _Scratch(local):
    def __init__(self) -> None:
        self.first = np.empty(_CHUNK, np.uint16)
        self.second = np.empty(_CHUNK, np.uint16)
        self.wide = np.empty(_CHUNK, np.uint32)


_scratch = _Scratch()


def split_bfloat16(words: Words, exponent: Bytes, rest: Bytes) -> None:
    """All three of one length; `exponent` and `rest` are written."""
    for start in range(0, words.size, _CHUNK):
        chunk = words[start : start + _CHUNK]
        first, second = _scratch.first[: chunk.size], _scratch.second[: chunk.size]
        np.right_shift(chunk, _SEVEN, out=first)
        np.copyto(exponent[start : start + _CHUNK], first, casting="unsafe")
        np.right_shift(chunk, _EIGHT, out=first)
        np.bitwise_and(first, np.uint16(0x80), out=first)
        np.bitwise_and(chunk, np.uint16(0x7F), out=second)
        np.bitwise_or(first, second, out=first)
        np.copyto(rest[start : start + _CHUNK], first, casting="unsafe")


def merge_bfloat16(exponent: Bytes, rest: Bytes, words: Words) -> None:
    """Inverse of `split_bfloat16`; `words` is written."""
    for start in range(0, words.size, _CHUNK):
        chunk = words[start : start + _CHUNK]
        second = _scratch.second[: chunk.size]
        np.copyto(chunk, exponent[start : start + _CHUNK])
        np.left_shift(chunk, _SEVEN, out=chunk)
        # Read as signed, the rest's top bit spreads over bits 7 to 15; the mask keeps it where the sign belongs.
        np.copyto(second.view(np.int16), rest[start : start + _CHUNK].view(np.int8))
        np.bitwise_and(second, _REST, out=second)
        np.bitwise_or(chunk, second, out=chunk)


def split_float16(words: Words, high: Bytes, low: Bytes) -> None:
    for start in range(0, words.size, _CHUNK):
        chunk = words[start : start + _CHUNK]
        first = _scratch.first[: chunk.size]
        np.right_shift(chunk, _EIGHT, out=first)
        np.copyto(high[start : start + _CHUNK], first, casting="unsafe")
        np.copyto(low[start : start + _CHUNK], chunk, casting="unsafe")


def merge_float16(high: Bytes, low: Bytes, words: Words) -> None:
    for start in range(0, words.size, _CHUNK):
        chunk = words[start : start + _CHUNK]
        second = _scratch.second[: chunk.size]
        np.copyto(chunk, high[start : start + _CHUNK])
        np.left_shift(chunk, _EIGHT, out=chunk)
        np.copyto(second, low[start : start + _CHUNK])
        np.bitwise_or(chunk, second, out=chunk)


def split_float32(longs: Longs, exponent: Bytes, rest: Bytes, low: Words) -> None:
    upper = np.empty(min(_CHUNK, longs.size), np.uint16)
    for start in range(0, longs.size, _CHUNK):
        stop = min(start + _CHUNK, longs.size)
        wide = _scratch.wide[: stop - start]
        np.right_shift(longs[start:stop], np.uint32(16), out=wide)
        np.copyto(upper[: stop - start], wide, casting="unsafe")
        split_bfloat16(upper[: stop - start], exponent[start:stop], rest[start:stop])
        np.copyto(low[start:stop], longs[start:stop], casting="unsafe")


def merge_float32(exponent: Bytes, rest: Bytes, low: Words, longs: Longs) -> None:
    for start in range(0, longs.size, _CHUNK):
        stop = min(start + _CHUNK, longs.size)
        upper, wide = _scratch.first[: stop - start], _scratch.wide[: stop - start]
        merge_bfloat16(exponent[start:stop], rest[start:stop], upper)
        np.copyto(longs[start:stop], upper)
        np.left_shift(longs[start:stop], np.uint32(16), out=longs[start:stop])
        np.copyto(wide, low[start:stop])
        np.bitwise_or(longs[start:stop], wide, out=longs[start:stop])


__all__ = (
    "Bytes",
    "Longs",
    "Words",
    "merge_bfloat16",
    "merge_float16",
    "merge_float32",
    "split_bfloat16",
    "split_float16",
    "split_float32",
)
