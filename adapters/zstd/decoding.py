"""Decoding a frame: every plane is read, unfolded and merged in chunks that stay in the cache.

The frame's buffers are read where they lie, and each number is written to memory once. Decompressors and scratch
belong to the calling thread. Where the planes are merged elsewhere, they are written as they are: two thirds of the
work, and a third of the calls between which threads meet at the interpreter's lock (bench/store_decode).
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from threading import local
from typing import IO, Protocol, cast

import numpy as np
from zstandard import ZstdDecompressor, ZstdError, frame_content_size

from adapters.zstd import frame as layout
from adapters.zstd import planes
from adapters.zstd.buffer_pool import BufferPool
from adapters.zstd.cursor import FrameCursor
from adapters.zstd.frame import Plane, Segment
from adapters.zstd.planes import CHUNK, Bytes
from application.ports.state_codec import CodecError
from domain.payload import HostPayload, SplitPayload, StatePayload

_ALIGNMENT = 64
_READ_BYTES = 1 << 22
_ZSTD_HEADER_BYTES = 18


class _Context(local):
    """One decompressor and one chunk for each plane of a segment: they are read in turns."""

    def __init__(self) -> None:
        self.decompressors = [ZstdDecompressor() for _ in range(3)]
        self.chunks = [np.empty(2 * CHUNK, np.uint8) for _ in range(3)]


_context = _Context()


class _PlaneReader(Protocol):
    @property
    def run(self) -> int:
        """Bytes that `take` gives without copying."""
        ...

    def take(self, size_bytes: int) -> Bytes:
        """The next bytes, until the next call on this thread. Raises CodecError."""
        ...


class _RawPlane:
    def __init__(self, stored: FrameCursor) -> None:
        self._stored = stored

    @property
    def run(self) -> int:
        return self._stored.run

    def take(self, size_bytes: int) -> Bytes:
        return np.frombuffer(self._stored.take(size_bytes), np.uint8)


class _ZstdPlane:
    """One whole zstd frame. Raises CodecError."""

    def __init__(self, stored: FrameCursor, raw_bytes: int, index: int) -> None:
        self._chunk = _context.chunks[index]
        self.run = self._chunk.size
        try:
            if frame_content_size(stored.peek(_ZSTD_HEADER_BYTES)) != raw_bytes:
                raise CodecError("a compressed plane has another size than its frame says")
        except ZstdError as failure:
            raise _not_zstd(failure) from None
        # A plane that lies together is decoded by one call, straight into where it goes.
        is_whole = stored.run == stored.remaining
        source = stored.read(stored.remaining) if is_whole else cast(IO[bytes], stored)  # of which it wants only `read`
        self._reader = _context.decompressors[index].stream_reader(source, read_size=_READ_BYTES)

    def take(self, size_bytes: int) -> Bytes:
        chunk = self._chunk[:size_bytes]
        self.fill(chunk)
        return chunk

    def fill(self, out: Bytes) -> None:
        filled = 0
        try:
            while filled < out.size:
                count = self._reader.readinto(out[filled:].data)  # pyright: ignore[reportUnknownMemberType]
                if not count:
                    raise CodecError("a compressed plane is truncated")
                filled += count
        except ZstdError as failure:
            raise _not_zstd(failure) from None


def decode(frame: FrameCursor, pool: BufferPool) -> HostPayload:
    """All tensors of a frame, in one piece of memory from the pool. Raises CodecError."""
    return _decode_merged(layout.parse(frame), frame, pool)


def decode_split(frame: FrameCursor, pool: BufferPool) -> StatePayload:
    """As `decode`, but of a frame that is one segment of bfloat16 the planes, each in memory from the pool."""
    segments = layout.parse(frame)
    if len(segments) != 1 or segments[0].transform != layout.BFLOAT16:
        return _decode_merged(segments, frame, pool)
    exponent, rest = (_read_plane(plane, frame, pool) for plane in segments[0].planes)
    return SplitPayload(segments[0].specs, exponent, rest, partial(_merged, pool=pool))


def _merged(payload: SplitPayload, pool: BufferPool) -> tuple[memoryview, ...]:
    exponent, rest = (np.frombuffer(plane, np.uint8) for plane in (payload.exponent, payload.rest))
    arena = pool.take(payload.size_bytes)
    words = arena.view(np.uint16)
    for at in range(0, words.size, CHUNK):
        planes.merge_bfloat16(exponent[at : at + CHUNK], rest[at : at + CHUNK], words[at : at + CHUNK])
    ends = list(accumulate(spec.size_bytes for spec in payload.specs))
    return tuple(arena[start:end].data.toreadonly() for start, end in pairwise([0, *ends]))


def _read_plane(plane: Plane, frame: FrameCursor, pool: BufferPool) -> memoryview:
    _check_claim(plane.raw_bytes, plane.stored_bytes)
    out = pool.take(plane.raw_bytes)
    _fill(plane, frame, out)
    return out.data.toreadonly()


def _decode_merged(segments: list[Segment], frame: FrameCursor, pool: BufferPool) -> HostPayload:
    starts: list[int] = []
    end = 0
    for segment in segments:
        starts.append(end)
        end += -(-segment.size_bytes // _ALIGNMENT) * _ALIGNMENT
    arena = _arena(segments, end, pool)
    data: list[memoryview] = []
    for segment, start in zip(segments, starts, strict=True):
        _decode_segment(segment, frame, arena[start : start + segment.size_bytes])
        for spec in segment.specs:
            data.append(arena[start : start + spec.size_bytes].data.toreadonly())
            start += spec.size_bytes
    return HostPayload(tuple(spec for segment in segments for spec in segment.specs), tuple(data))


def _arena(segments: list[Segment], size_bytes: int, pool: BufferPool) -> Bytes:
    stored_bytes = sum(plane.stored_bytes for segment in segments for plane in segment.planes)
    _check_claim(size_bytes, stored_bytes + len(segments) * _ALIGNMENT)
    return pool.take(size_bytes)


def _check_claim(size_bytes: int, stored_bytes: int) -> None:
    if size_bytes > 1 << 48:
        raise CodecError("a state frame names more bytes than there is memory")
    # A frame that claims to unfold a thousandfold beyond what zstd can do is not one of ours.
    if size_bytes > stored_bytes * 100_000:
        raise CodecError("a state frame claims more bytes than it can hold")


def _decode_segment(segment: Segment, frame: FrameCursor, out: Bytes) -> None:
    """Write the segment's tensors, end to end, to `out`; `frame` stands behind its planes then."""
    if segment.transform == layout.IDENTITY:
        _fill(segment.planes[0], frame, out)
        return
    readers = [_reader(plane, frame, index) for index, plane in enumerate(segment.planes)]
    item_bytes = layout.PLANE_ITEM_BYTES[segment.transform]
    merge = _MERGES[segment.transform]
    count, done = segment.size_bytes // sum(item_bytes), 0
    while done < count:
        run = min(reader.run // size for reader, size in zip(readers, item_bytes, strict=True))
        size = min(CHUNK, count - done, max(run, 1))
        parts = [reader.take(size * one) for reader, one in zip(readers, item_bytes, strict=True)]
        merge(parts, out[done * sum(item_bytes) : (done + size) * sum(item_bytes)])
        done += size


def _fill(plane: Plane, frame: FrameCursor, out: Bytes) -> None:
    """Write a plane as it is."""
    if plane.encoding == layout.ZSTD:
        _ZstdPlane(FrameCursor(frame.parts(plane.stored_bytes)), plane.raw_bytes, 0).fill(out)
        return
    filled = 0
    for part in frame.parts(plane.stored_bytes):
        out[filled : filled + part.nbytes] = np.frombuffer(part, np.uint8)
        filled += part.nbytes


def _reader(plane: Plane, frame: FrameCursor, index: int) -> _PlaneReader:
    stored = FrameCursor(frame.parts(plane.stored_bytes))
    return _RawPlane(stored) if plane.encoding == layout.RAW else _ZstdPlane(stored, plane.raw_bytes, index)


def _merge_bfloat16(parts: Sequence[Bytes], out: Bytes) -> None:
    planes.merge_bfloat16(parts[0], parts[1], out.view(np.uint16))


def _merge_float16(parts: Sequence[Bytes], out: Bytes) -> None:
    planes.merge_float16(parts[0], parts[1], out.view(np.uint16))


def _merge_float32(parts: Sequence[Bytes], out: Bytes) -> None:
    planes.merge_float32(parts[0], parts[1], parts[2].view(np.uint16), out.view(np.uint32))


_MERGES: dict[int, Callable[[Sequence[Bytes], Bytes], None]] = {
    layout.BFLOAT16: _merge_bfloat16,
    layout.FLOAT16: _merge_float16,
    layout.FLOAT32: _merge_float32,
}


def _not_zstd(failure: ZstdError) -> CodecError:
    return CodecError(f"a compressed plane is not zstd: {failure}")


__all__ = ("decode", "decode_split")
