"""Decoding a frame: its planes are unfolded and merged in chunks that stay in the cache.

Each number is written to memory once. Every call that works on a chunk gives up the interpreter's lock and has to win
it back, so chunks are large. Decompressors and scratch belong to the calling thread.
"""

from collections.abc import Callable, Iterator, Sequence
from threading import local
from typing import TypeAlias

import numpy as np
from zstandard import ZstdDecompressor, ZstdError, frame_content_size

from adapters.zstd import frame as layout
from adapters.zstd import planes
from adapters.zstd.frame import Plane, Segment
from adapters.zstd.planes import CHUNK, Bytes
from application.ports.state_codec import CodecError
from domain.prefix.payload import HostPayload, TensorSpec

_READ_BYTES = 1 << 22
_MOST_BYTES = 8 << 20
"""Of memory that is taken at a time, where tensors are not larger: what is freed of it the allocator keeps. A block of
37 MB would be given back to the system, and cost its page faults anew, a quarter of decoding it."""


class _Context(local):
    """One decompressor and one chunk for each plane of a segment: they are read in turns."""

    def __init__(self) -> None:
        self.decompressors = [ZstdDecompressor() for _ in range(3)]
        self.chunks = [np.empty(2 * CHUNK, np.uint8) for _ in range(3)]


_context = _Context()

_Take: TypeAlias = Callable[[int], Bytes]
"""The next so many bytes of a plane, until the next call on this thread. Raises CodecError."""


def decode(frame: memoryview) -> HostPayload:
    """All tensors of a frame, in memory of their own. Raises CodecError."""
    segments, at = layout.parse(frame)
    data: list[memoryview] = []
    for segment in segments:
        _check_claim(segment)
        takes: list[_Take] = []
        for index, plane in enumerate(segment.planes):
            takes.append(_opened(plane, frame[at : at + plane.stored_bytes], index))
            at += plane.stored_bytes
        for specs in _together(segment.specs):
            data += _decoded(segment.transform, specs, takes)
    return HostPayload(tuple(spec for segment in segments for spec in segment.specs), tuple(data))


def _check_claim(segment: Segment) -> None:
    if segment.size_bytes > 1 << 48:
        raise CodecError("a state frame names more bytes than there is memory")
    # A frame that claims to unfold a thousandfold beyond what zstd can do is not one of ours.
    if segment.size_bytes > 100_000 * (64 + sum(plane.stored_bytes for plane in segment.planes)):
        raise CodecError("a state frame claims more bytes than it can hold")


def _together(specs: Sequence[TensorSpec]) -> Iterator[list[TensorSpec]]:
    """Consecutive tensors that lie in one piece of memory."""
    run: list[TensorSpec] = []
    num_bytes = 0
    for spec in specs:
        if run and num_bytes + spec.size_bytes > _MOST_BYTES:
            yield run
            run, num_bytes = [], 0
        run.append(spec)
        num_bytes += spec.size_bytes
    if run:
        yield run


def _decoded(transform: int, specs: Sequence[TensorSpec], takes: Sequence[_Take]) -> list[memoryview]:
    out = np.empty(sum(spec.size_bytes for spec in specs), np.uint8)
    item_bytes, merge = layout.PLANE_ITEM_BYTES[transform], _MERGES[transform]
    width = sum(item_bytes)
    for done in range(0, out.size // width, CHUNK):
        count = min(CHUNK, out.size // width - done)
        parts = [take(count * one) for take, one in zip(takes, item_bytes, strict=True)]
        merge(parts, out[done * width : (done + count) * width])
    found: list[memoryview] = []
    at = 0
    for spec in specs:
        found.append(out[at : at + spec.size_bytes].data.toreadonly())
        at += spec.size_bytes
    return found


def _opened(plane: Plane, stored: memoryview, index: int) -> _Take:
    if plane.encoding == layout.ZSTD:
        return _ZstdPlane(stored, plane.raw_bytes, index).take
    raw, at = np.frombuffer(stored, np.uint8), 0

    def take(size_bytes: int) -> Bytes:
        nonlocal at
        at += size_bytes
        return raw[at - size_bytes : at]

    return take


class _ZstdPlane:
    """One whole zstd frame. Raises CodecError."""

    def __init__(self, stored: memoryview, raw_bytes: int, index: int) -> None:
        self._chunk = _context.chunks[index]
        try:
            if frame_content_size(stored) != raw_bytes:
                raise CodecError("a compressed plane has another size than its frame says")
        except ZstdError as failure:
            raise _not_zstd(failure) from None
        self._reader = _context.decompressors[index].stream_reader(stored, read_size=_READ_BYTES)

    def take(self, size_bytes: int) -> Bytes:
        chunk, filled = self._chunk[:size_bytes], 0
        try:
            while filled < size_bytes:
                count = self._reader.readinto(chunk[filled:].data)  # pyright: ignore[reportUnknownMemberType]
                if not count:
                    raise CodecError("a compressed plane is truncated")
                filled += count
        except ZstdError as failure:
            raise _not_zstd(failure) from None
        return chunk


def _copy(parts: Sequence[Bytes], out: Bytes) -> None:
    np.copyto(out, parts[0])


def _merge_bfloat16(parts: Sequence[Bytes], out: Bytes) -> None:
    planes.merge_bfloat16(parts[0], parts[1], out.view(np.uint16))


def _merge_float16(parts: Sequence[Bytes], out: Bytes) -> None:
    planes.merge_float16(parts[0], parts[1], out.view(np.uint16))


def _merge_float32(parts: Sequence[Bytes], out: Bytes) -> None:
    planes.merge_float32(parts[0], parts[1], parts[2].view(np.uint16), out.view(np.uint32))


_MERGES: dict[int, Callable[[Sequence[Bytes], Bytes], None]] = {
    layout.IDENTITY: _copy,
    layout.BFLOAT16: _merge_bfloat16,
    layout.FLOAT16: _merge_float16,
    layout.FLOAT32: _merge_float32,
}


def _not_zstd(failure: ZstdError) -> CodecError:
    return CodecError(f"a compressed plane is not zstd: {failure}")
