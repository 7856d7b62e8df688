"""Lossless state frames: planes by dtype, compressed where it pays (docs/store-format.md, codec frames).

Exponents go through zstd in a setting that only does Huffman coding: chance matches cost more than they save, in size
and in time. Every other plane is tried on a sample first. Compressors belong to the calling thread.
"""

from collections.abc import Callable, Sequence
from threading import local

import numpy as np
from zstandard import (
    STRATEGY_FAST,
    ZstdCompressionParameters,
    ZstdCompressor,
)

from adapters.zstd import frame as layout
from adapters.zstd import planes
from adapters.zstd.decoding import decode
from adapters.zstd.frame import Plane, Segment
from adapters.zstd.planes import Bytes
from application.ports.state_codec import CodecError
from domain.prefix.payload import StatePayload, TensorSpec

_HUFFMAN = ZstdCompressionParameters(
    strategy=STRATEGY_FAST, window_log=17, hash_log=6, min_match=7, target_length=0, write_content_size=True
)
_WORTH_IT = 0.95
_SAMPLE_SHARE = 16
_SAMPLE_SLICES = 8
_SMALL_PLANE_BYTES = 1 << 13


class _Context(local):
    def __init__(self) -> None:
        self.huffman = ZstdCompressor(compression_params=_HUFFMAN)
        self.matching = ZstdCompressor(level=1)


_context = _Context()


class ZstdStateCodec:
    """See the port. `compress` False writes raw planes only; either way every frame can be read."""

    def __init__(self, *, compress: bool = True) -> None:
        self._compress = compress

    def encode(self, payload: StatePayload) -> Sequence[memoryview]:
        segments: list[Segment] = []
        stored: list[memoryview] = []
        buffers = list(payload.buffers())
        for specs in layout.runs(payload.specs):
            chosen, buffers = buffers[: len(specs)], buffers[len(specs) :]
            for spec, buffer in zip(specs, chosen, strict=True):
                if buffer.nbytes != spec.size_bytes:
                    raise CodecError(f"{spec} needs {spec.size_bytes} bytes and has {buffer.nbytes}")
            segment, data = self._encode_run(specs, chosen)
            segments.append(segment)
            stored.extend(data)
        return [memoryview(layout.pack(segments)), *(view for view in stored if view.nbytes)]

    def decode(self, frame: memoryview) -> StatePayload:
        return decode(frame)

    def _encode_run(self, specs: tuple[TensorSpec, ...], buffers: list[memoryview]) -> tuple[Segment, list[memoryview]]:
        transform = layout.TRANSFORMS.get(specs[0].dtype, layout.IDENTITY) if self._compress else layout.IDENTITY
        if not self._compress:
            parts = [buffer for buffer in buffers if buffer.nbytes]
            size = sum(part.nbytes for part in parts)
            return Segment(transform, specs, (Plane(layout.RAW, size, size),)), parts
        raw = _split(transform, specs, buffers)
        encoded = [
            _compress(plane, is_exponent=index == 0 and transform != layout.IDENTITY) for index, plane in enumerate(raw)
        ]
        described = tuple(
            Plane(encoding, plane.nbytes, data.nbytes) for plane, (encoding, data) in zip(raw, encoded, strict=True)
        )
        return Segment(transform, specs, described), [data for _, data in encoded]


def _split(transform: int, specs: tuple[TensorSpec, ...], buffers: list[memoryview]) -> list[Bytes]:
    sizes = layout.plane_sizes(transform, specs)
    if transform == layout.IDENTITY and len(buffers) == 1:
        return [np.frombuffer(buffers[0], np.uint8)] if sizes[0] else [np.empty(0, np.uint8)]
    result = [np.empty(size, np.uint8) for size in sizes]
    position = 0
    for buffer in buffers:
        if not buffer.nbytes:
            continue
        if transform == layout.IDENTITY:
            result[0][position : position + buffer.nbytes] = np.frombuffer(buffer, np.uint8)
            position += buffer.nbytes
        elif transform == layout.FLOAT32:
            longs = np.frombuffer(buffer, np.uint32)
            stop = position + longs.size
            low = result[2].view(np.uint16)
            planes.split_float32(longs, result[0][position:stop], result[1][position:stop], low[position:stop])
            position = stop
        else:
            words = np.frombuffer(buffer, np.uint16)
            split = planes.split_bfloat16 if transform == layout.BFLOAT16 else planes.split_float16
            split(words, result[0][position : position + words.size], result[1][position : position + words.size])
            position += words.size
    return result


def _compress(plane: Bytes, *, is_exponent: bool) -> tuple[int, memoryview]:
    compress: Callable[[memoryview], bytes] | None = (
        _context.huffman.compress if is_exponent else _chosen_by_sample(plane)
    )
    if compress is not None and plane.size:
        data = compress(plane.data)
        if len(data) < plane.size * _WORTH_IT:
            return layout.ZSTD, memoryview(data)
    return layout.RAW, plane.data


def _chosen_by_sample(plane: Bytes) -> Callable[[memoryview], bytes] | None:
    """The denser of the two settings, or None when neither pays."""
    sample = plane
    if plane.size > _SMALL_PLANE_BYTES:
        length = plane.size // (_SAMPLE_SHARE * _SAMPLE_SLICES)
        stride = plane.size // _SAMPLE_SLICES
        sample = np.concatenate([plane[at : at + length] for at in range(0, _SAMPLE_SLICES * stride, stride)])
    matched, coded = len(_context.matching.compress(sample.data)), len(_context.huffman.compress(sample.data))
    if min(matched, coded) >= sample.size * _WORTH_IT:
        return None
    return _context.matching.compress if matched < coded else _context.huffman.compress
