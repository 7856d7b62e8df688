"""The wire format of KV events: that of vLLM since its events are maps, with the fields that every consumer takes.

    frames   topic | number of the batch, 8 bytes, big endian | payload
    payload  MessagePack: [seconds since 1970, [event, ...], rank]
    event    {"type": "BlockStored", ...}, with all of its required fields and no others: one unknown field makes a
             consumer refuse the batch

Consumers map hashes to what they know; they neither compute nor compare them. Some take integers of 64 bits only.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import msgpack

from domain.prefix.published_blocks import BlockEvent, BlocksRemoved, BlocksStored

MAX_BATCH_TOKENS = 262_144
"""Tokens of one batch, about 1.5 MB: consumers refuse more than 16 MiB."""

MAX_BATCH_EVENTS = 1_024
"""Consumers refuse more than 4,096."""


def batches(events: Iterable[BlockEvent]) -> Iterator[list[BlockEvent]]:
    """Cuts events into batches within both bounds."""
    batch, num_tokens = list[BlockEvent](), 0
    for event in events:
        own = len(event.token_ids) if isinstance(event, BlocksStored) else 0
        if batch and (num_tokens + own > MAX_BATCH_TOKENS or len(batch) >= MAX_BATCH_EVENTS):
            yield batch
            batch, num_tokens = [], 0
        batch.append(event)
        num_tokens += own
    if batch:
        yield batch


class EventWire:
    """The encoding of batches. `block_size`: tokens of a block. `are_integers`: hashes are sent as integers, the low 64
    bits, otherwise as 32 bytes."""

    def __init__(self, block_size: int, *, are_integers: bool) -> None:
        self._block_size = block_size
        self._hash: Callable[[bytes], object] = _low_bits if are_integers else bytes
        self._encoder = msgpack.Encoder()

    def payload(self, events: Sequence[BlockEvent], time_s: float) -> bytes:
        return self._encoder.encode((time_s, list(map(self._event, events)), None))

    def _event(self, event: BlockEvent) -> dict[str, object]:
        if isinstance(event, BlocksStored):
            return {
                "type": "BlockStored",
                "block_hashes": list(map(self._hash, event.hashes)),
                "parent_block_hash": None if event.parent is None else self._hash(event.parent),
                "token_ids": list(event.token_ids),
                "block_size": self._block_size,
                "lora_id": None,
                "medium": event.medium.value,
                "lora_name": None,
            }
        if isinstance(event, BlocksRemoved):
            hashes = list(map(self._hash, event.hashes))
            return {"type": "BlockRemoved", "block_hashes": hashes, "medium": event.medium.value}
        return {"type": "AllBlocksCleared"}


def _low_bits(hash: bytes) -> int:
    return int.from_bytes(hash[-8:], "big")
