"""Model state in transit: typed buffers that nobody between the compute adapter and itself looks into."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol, TypeAlias

from domain.ids import GroupIndex

ITEM_BYTES: Mapping[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "uint32": 4, "int32": 4, "float32": 4, "uint64": 8, "int64": 8, "float64": 8, "complex64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """dtype (a key of ITEM_BYTES) and shape of one C-contiguous tensor; any dimension may be 0."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


class StatePayload(Protocol):
    """Tensors of one state group, in layout order. Immutable; safe to read from any thread.

    An adapter may keep the data where it was computed (device memory): `buffers` exports it on first use.
    """

    @property
    def specs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def size_bytes(self) -> int:
        """Raw bytes of all tensors."""
        ...

    def buffers(self) -> tuple[memoryview, ...]:
        """One flat ("B"), read-only, C-contiguous view a tensor, `specs[i].size_bytes` long each."""
        ...


@dataclass(frozen=True, slots=True)
class HostPayload:
    """A StatePayload whose bytes are in host memory."""

    specs: tuple[TensorSpec, ...]
    data: tuple[memoryview, ...]

    @property
    def size_bytes(self) -> int:
        return sum(spec.size_bytes for spec in self.specs)

    def buffers(self) -> tuple[memoryview, ...]:
        return self.data


GroupPayloads: TypeAlias = Mapping[GroupIndex, StatePayload]
"""The state of a block or a snapshot, by state group."""
