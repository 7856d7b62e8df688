"""The header of a codec frame: the tensors that follow, in segments and planes (docs/store-format.md).

Parsing trusts nothing: every count is checked against the bytes before it is used.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from struct import Struct, error

from application.ports.block_store import CodecError
from domain.prefix.record import ITEM_BYTES, TensorSpec

MAGIC = int.from_bytes(b"CF", "little")
VERSION = 1

DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "float16", "bfloat16",
    "uint32", "int32", "float32", "uint64", "int64", "float64", "complex64",
)  # fmt: skip
"""Frames hold the position in this tuple: append only."""

IDENTITY, BFLOAT16, FLOAT16, FLOAT32 = range(4)
TRANSFORMS = {"bfloat16": BFLOAT16, "float16": FLOAT16, "float32": FLOAT32}
PLANE_ITEM_BYTES = {IDENTITY: (1,), BFLOAT16: (1, 1), FLOAT16: (1, 1), FLOAT32: (1, 1, 2)}
"""By transform: bytes a number in each plane; for identity the plane is simply all bytes."""

RAW, ZSTD = range(2)

_HEAD = Struct("<HBBHH")
_TENSOR = Struct("<BB")
_DIM = Struct("<Q")
_DIMS = [Struct(f"<{rank}Q") for rank in range(33)]
_SEGMENT = Struct("<BBH")
_PLANE = Struct("<BQ")


@dataclass(frozen=True, slots=True)
class Plane:
    """One plane of a segment: `raw_bytes` before and `stored_bytes` after the encoding (RAW or ZSTD)."""

    encoding: int
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tensors under one transform."""

    transform: int
    specs: tuple[TensorSpec, ...]
    planes: tuple[Plane, ...]

    @property
    def size_bytes(self) -> int:
        return sum(spec.size_bytes for spec in self.specs)


_MAX_KNOWN = 16
_known: dict[int, tuple[bytes, tuple[TensorSpec, ...]]] = {}
"""Tensors as bytes of a frame and as values, by their number. Entries are replaced whole, from any thread."""


def runs(specs: tuple[TensorSpec, ...]) -> list[tuple[TensorSpec, ...]]:
    """Returns consecutive tensors of one dtype, together."""
    return [tuple(run) for _, run in groupby(specs, key=lambda spec: spec.dtype)]


def plane_sizes(transform: int, specs: tuple[TensorSpec, ...]) -> tuple[int, ...]:
    """Returns the raw bytes of each plane of a segment."""
    total = sum(spec.size_bytes for spec in specs)
    if transform == IDENTITY or not specs:
        return (total,)
    count = total // ITEM_BYTES[specs[0].dtype]
    return tuple(count * item_bytes for item_bytes in PLANE_ITEM_BYTES[transform])


def pack(segments: list[Segment]) -> bytes:
    specs = [spec for segment in segments for spec in segment.specs]
    parts = [_HEAD.pack(MAGIC, VERSION, 0, len(specs), len(segments)), _packed(specs)]
    for segment in segments:
        parts.append(_SEGMENT.pack(segment.transform, len(segment.planes), len(segment.specs)))
        parts.extend(_PLANE.pack(plane.encoding, plane.stored_bytes) for plane in segment.planes)
    return b"".join(parts)


def parse(frame: memoryview) -> tuple[list[Segment], int]:
    """Returns the segments, and the offset of the first plane. Raises CodecError."""
    head = _Reading(frame)
    magic, version, _, num_tensors, num_segments = head.take(_HEAD)
    if magic != MAGIC or version != VERSION:
        raise CodecError("not a state frame, or one of a newer version")
    specs = list(_tensors(head, num_tensors))
    segments = [_segment(head, specs) for _ in range(num_segments)]
    stored_bytes = sum(plane.stored_bytes for segment in segments for plane in segment.planes)
    if specs or stored_bytes != frame.nbytes - head.at:
        raise CodecError("a state frame has other sizes than its header says")
    return segments, head.at


class _Reading:
    """A position in a frame."""

    def __init__(self, frame: memoryview) -> None:
        self.frame = frame
        self.at = 0

    def take(self, layout: Struct) -> tuple[int, ...]:
        try:
            values = layout.unpack_from(self.frame, self.at)
        except error:
            raise CodecError("a state frame is truncated") from None
        self.at += layout.size
        return values


def _tensors(head: _Reading, count: int) -> tuple[TensorSpec, ...]:
    """All frames of a model name the same tensors: the last ones are compared first."""
    packed, specs = _known.get(count, (b"", ()))
    if packed and bytes(head.frame[head.at : head.at + len(packed)]) == packed:
        head.at += len(packed)
        return specs
    specs = tuple(_tensor(head) for _ in range(count))
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    _known[count] = _packed(specs), specs
    return specs


def _packed(specs: Iterable[TensorSpec]) -> bytes:
    parts: list[bytes] = []
    for spec in specs:
        parts.append(_TENSOR.pack(DTYPES.index(spec.dtype), len(spec.shape)))
        parts.extend(_DIM.pack(size) for size in spec.shape)
    return b"".join(parts)


def _tensor(head: _Reading) -> TensorSpec:
    dtype, rank = head.take(_TENSOR)
    if dtype >= len(DTYPES) or rank >= len(_DIMS):
        raise CodecError(f"a state frame names dtype {dtype} with {rank} dimensions")
    return TensorSpec(DTYPES[dtype], head.take(_DIMS[rank]))


def _segment(head: _Reading, specs: list[TensorSpec]) -> Segment:
    transform, num_planes, num_tensors = head.take(_SEGMENT)
    chosen, specs[:num_tensors] = tuple(specs[:num_tensors]), []
    if len(chosen) != num_tensors or transform not in PLANE_ITEM_BYTES:
        raise CodecError(f"a state frame has a segment of {num_tensors} tensors with transform {transform}")
    if transform != IDENTITY and any(TRANSFORMS.get(spec.dtype) != transform for spec in chosen):
        raise CodecError("a state frame has a segment of mixed dtypes")
    sizes = plane_sizes(transform, chosen)
    if len(sizes) != num_planes:
        raise CodecError(f"a state frame has {num_planes} planes where {len(sizes)} belong")
    segment = Segment(transform, chosen, tuple(_plane(head, size) for size in sizes))
    # zstd can unfold a hundred-thousandfold at most.
    if segment.size_bytes > min(1 << 48, 100_000 * (64 + sum(plane.stored_bytes for plane in segment.planes))):
        raise CodecError(f"a state frame claims {segment.size_bytes} bytes, more than it can hold")
    return segment


def _plane(head: _Reading, raw_bytes: int) -> Plane:
    encoding, stored_bytes = head.take(_PLANE)
    if encoding > ZSTD or (encoding == RAW and stored_bytes != raw_bytes):
        raise CodecError(f"a state frame has a plane of {stored_bytes} bytes for {raw_bytes}")
    return Plane(encoding, raw_bytes, stored_bytes)
