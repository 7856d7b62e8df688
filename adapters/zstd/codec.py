"""Lossless state frames: planes by dtype, compressed where it pays (docs/store-format.md, codec frames).

Exponents go through zstd in a setting that only does Huffman coding: chance matches cost more than they save, in size
and in time. Every other plane is tried on a sample first. Decoding decompresses and merges planes in chunks, so that
each number is written to memory once. Compressors, decompressors and scratch belong to the calling thread.
"""

from collections.abc import Callable, Iterator, Sequence
from threading import local
from typing import TypeAlias

import numpy as np
from zstandard import (
    STRATEGY_FAST,
    ZstdCompressionParameters,
    ZstdCompressor,
    ZstdDecompressor,
    ZstdError,
    frame_content_size,
)

from adapters.zstd.frame import (
    IDENTITY,
    PLANE_ITEM_BYTES,
    RAW,
    TRANSFORMS,
    ZSTD,
    Plane,
    Segment,
    pack,
    parse,
    plane_sizes,
    runs,
)
from adapters.zstd.planes import BUFFER, CHUNK, MERGES, SPLITS, Bytes
from application.ports.block_store import CodecError, EncodedPayload
from domain.prefix.record import HostPayload, StatePayload, TensorSpec

_HUFFMAN = ZstdCompressionParameters(
    strategy=STRATEGY_FAST, window_log=17, hash_log=6, min_match=7, target_length=0, write_content_size=True
)
_WORTH_IT = 0.95
_SAMPLE_SHARE = 16
_SAMPLE_SLICES = 8
_SMALL_PLANE_BYTES = 1 << 13
_READ_BYTES = 1 << 22
_MOST_BYTES = 8 << 20
"""Memory taken at a time, where tensors are not larger: the allocator keeps it when it is freed. A block of 37 MB would
be given back to the system, and its page faults cost a quarter of decoding it."""

_Take: TypeAlias = Callable[[int], Bytes]
"""Returns the given number of bytes of a plane, valid until the next call on this thread. Raises CodecError."""


class _Context(local):
    """One decompressor and one chunk for each plane of a segment: they are read in turns."""

    def __init__(self) -> None:
        self.huffman = ZstdCompressor(compression_params=_HUFFMAN)
        self.matching = ZstdCompressor(level=1)
        self.decompressors = [ZstdDecompressor() for _ in range(3)]
        self.chunks = [np.empty(2 * CHUNK, np.uint8) for _ in range(3)]


_context = _Context()


class ZstdStateCodec:
    """A StateCodec over zstd. `compress` False writes raw planes only; every frame can be read either way."""

    def __init__(self, *, compress: bool = True) -> None:
        self._compress = compress

    def encode(self, payload: StatePayload) -> Sequence[memoryview]:
        if isinstance(payload, EncodedPayload):
            return [payload.frame]
        segments: list[Segment] = []
        stored: list[memoryview] = []
        buffers = list(payload.buffers())
        for specs in runs(payload.specs):
            chosen, buffers = buffers[: len(specs)], buffers[len(specs) :]
            for spec, buffer in zip(specs, chosen, strict=True):
                if buffer.nbytes != spec.size_bytes:
                    raise CodecError(f"{spec} needs {spec.size_bytes} bytes and has {buffer.nbytes}")
            transform = TRANSFORMS.get(specs[0].dtype, IDENTITY) if self._compress else IDENTITY
            if self._compress:
                planes = _split(transform, specs, chosen)
                encoded = [
                    _compressed(plane, is_exponent=index == 0 and transform != IDENTITY)
                    for index, plane in enumerate(planes)
                ]
                described = [
                    Plane(code, plane.nbytes, data.nbytes) for plane, (code, data) in zip(planes, encoded, strict=True)
                ]
                stored.extend(data for _, data in encoded)
            else:
                size_bytes = sum(buffer.nbytes for buffer in chosen)
                described = [Plane(RAW, size_bytes, size_bytes)]
                stored.extend(chosen)
            segments.append(Segment(transform, specs, tuple(described)))
        return [memoryview(pack(segments)), *(view for view in stored if view.nbytes)]

    def decode(self, frame: memoryview) -> StatePayload:
        """Returns tensors in memory of their own."""
        before = np.setbufsize(BUFFER)
        try:
            return _decode(frame)
        finally:
            np.setbufsize(before)


def _decode(frame: memoryview) -> StatePayload:
    segments, at = parse(frame)
    data: list[memoryview] = []
    for segment in segments:
        takes: list[_Take] = []
        for index, plane in enumerate(segment.planes):
            stored = frame[at : at + plane.stored_bytes]
            takes.append(_raw(stored) if plane.encoding == RAW else _decompressed(stored, plane.raw_bytes, index))
            at += plane.stored_bytes
        for specs in _together(segment.specs):
            data += _merged(segment.transform, specs, takes)
    return HostPayload(tuple(spec for segment in segments for spec in segment.specs), tuple(data))


def _split(transform: int, specs: tuple[TensorSpec, ...], buffers: list[memoryview]) -> list[Bytes]:
    if transform == IDENTITY and len(buffers) == 1 and buffers[0].nbytes:
        return [np.frombuffer(buffers[0], np.uint8)]
    planes = [np.empty(size, np.uint8) for size in plane_sizes(transform, specs)]
    item_bytes, split = PLANE_ITEM_BYTES[transform], SPLITS[transform]
    width, position = sum(item_bytes), 0
    for buffer in buffers:
        numbers = np.frombuffer(buffer, np.uint8) if buffer.nbytes else np.empty(0, np.uint8)
        for start in range(0, numbers.size, CHUNK * width):
            chunk = numbers[start : start + CHUNK * width]
            stop = position + chunk.size // width
            parts = [plane[position * one : stop * one] for plane, one in zip(planes, item_bytes, strict=True)]
            split(chunk, parts)
            position = stop
    return planes


def _compressed(plane: Bytes, *, is_exponent: bool) -> tuple[int, memoryview]:
    """Returns the encoding of a plane, and its bytes."""
    compress = _context.huffman.compress if is_exponent else _chosen_by_sample(plane)
    if compress is not None and plane.size:
        data = compress(plane.data)
        if len(data) < plane.size * _WORTH_IT:
            return ZSTD, memoryview(data)
    return RAW, plane.data


def _chosen_by_sample(plane: Bytes) -> Callable[[memoryview], bytes] | None:
    """Returns the denser of the two settings, or None when neither pays."""
    sample = plane
    if plane.size > _SMALL_PLANE_BYTES:
        length = plane.size // (_SAMPLE_SHARE * _SAMPLE_SLICES)
        stride = plane.size // _SAMPLE_SLICES
        sample = np.concatenate([plane[at : at + length] for at in range(0, _SAMPLE_SLICES * stride, stride)])
    matched, coded = len(_context.matching.compress(sample.data)), len(_context.huffman.compress(sample.data))
    if min(matched, coded) >= sample.size * _WORTH_IT:
        return None
    return _context.matching.compress if matched < coded else _context.huffman.compress


def _together(specs: Sequence[TensorSpec]) -> Iterator[list[TensorSpec]]:
    """Yields consecutive tensors that lie in one piece of memory."""
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


def _merged(transform: int, specs: Sequence[TensorSpec], takes: Sequence[_Take]) -> list[memoryview]:
    """Returns consecutive tensors, read-only."""
    out = np.empty(sum(spec.size_bytes for spec in specs), np.uint8)
    item_bytes, merge = PLANE_ITEM_BYTES[transform], MERGES[transform]
    width = sum(item_bytes)
    for start in range(0, out.size, CHUNK * width):
        chunk = out[start : start + CHUNK * width]
        count = chunk.size // width
        merge([take(count * one) for take, one in zip(takes, item_bytes, strict=True)], chunk)
    whole = out.data.toreadonly()
    found: list[memoryview] = []
    at = 0
    for spec in specs:
        found.append(whole[at : at + spec.size_bytes])
        at += spec.size_bytes
    return found


def _raw(stored: memoryview) -> _Take:
    raw, at = np.frombuffer(stored, np.uint8), 0

    def take(size_bytes: int) -> Bytes:
        nonlocal at
        at += size_bytes
        return raw[at - size_bytes : at]

    return take


def _decompressed(stored: memoryview, raw_bytes: int, index: int) -> _Take:
    """Reads one whole zstd frame. Raises CodecError."""
    scratch = _context.chunks[index]
    try:
        if frame_content_size(stored) != raw_bytes:
            raise CodecError("a compressed plane has another size than its frame says")
    except ZstdError as failure:
        raise CodecError(f"a compressed plane is not zstd: {failure}") from None
    reader = _context.decompressors[index].stream_reader(stored, read_size=_READ_BYTES)

    def take(size_bytes: int) -> Bytes:
        chunk, filled = scratch[:size_bytes], 0
        try:
            while filled < size_bytes:
                count = reader.readinto(chunk[filled:].data)  # pyright: ignore[reportUnknownMemberType]
                if not count:
                    raise CodecError("a compressed plane is truncated")
                filled += count
        except ZstdError as failure:
            raise CodecError(f"a compressed plane is not zstd: {failure}") from None
        return chunk

    return take
