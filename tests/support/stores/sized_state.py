"""State that takes memory by the count and has no bytes: for the ledger, which asks for sizes only."""

from dataclasses import dataclass
from hashlib import sha256

from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import BlockKey, Namespace, Record, TensorSpec

NAMESPACE = Namespace(sha256(b"sized state").digest())


@dataclass(frozen=True, slots=True)
class SizedPayload:
    """A StatePayload of so many bytes where computing happens."""

    size_bytes: int

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("uint8", (self.size_bytes,)),)

    def buffers(self) -> tuple[memoryview, ...]:
        raise AssertionError("nobody reads it")


def sized_record(number: int, size_bytes: int) -> Record:
    """A block of its own, like no other number's."""
    digest = BlockHash(sha256(number.to_bytes(8, "little")).digest())
    payload = {GroupIndex(0): SizedPayload(size_bytes)}
    return Record(BlockKey(NAMESPACE, digest), BlockHash(NAMESPACE), 1, IdRow((number,)), payload)
