"""An offer to the store."""

from collections.abc import Sequence
from dataclasses import dataclass

from domain.ids import NO_REQUEST, RequestId
from domain.prefix.record import NamespaceInfo, Record


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Records of one namespace, parents first, that are stored together or not at all. Offers are numbered in order.
    `id` and `offered_ns` are for telemetry: the request, and when it offered them."""

    info: NamespaceInfo
    records: tuple[Record, ...]
    raw_bytes: int
    number: int = 0
    id: RequestId = NO_REQUEST
    offered_ns: int = 0


def bytes_of(records: Sequence[Record]) -> int:
    """Returns the bytes of their payloads."""
    return sum(record.raw_bytes for record in records)
