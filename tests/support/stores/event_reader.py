"""A consumer of KV events over ZeroMQ, as strict as the strictest: vLLM's published structs, and a router's replay."""

from typing import Any

import msgspec
import zmq

from domain.id_row import IdRow
from domain.prefix.published_blocks import BlockEvent, BlocksCleared, BlocksRemoved, BlocksStored, Medium
from tests.support.patience import PATIENCE_S
from tests.support.stores.published_picture import Picture

END = b"\xff" * 8


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: "list[BlockStored | BlockRemoved | AllBlocksCleared]"
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True, forbid_unknown_fields=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


def _as_bytes(hash: bytes | int) -> bytes:
    return hash if isinstance(hash, bytes) else hash.to_bytes(8, "big")


def published(event: BlockStored | BlockRemoved | AllBlocksCleared) -> BlockEvent:
    """The event as the domain has it."""
    match event:
        case BlockStored():
            assert len(event.token_ids) == event.block_size * len(event.block_hashes)
            assert (event.lora_id, event.lora_name, event.extra_keys, event.group_idx) == (None,) * 4
            parent = None if event.parent_block_hash is None else _as_bytes(event.parent_block_hash)
            hashes = tuple(map(_as_bytes, event.block_hashes))
            return BlocksStored(hashes, parent, IdRow(event.token_ids), Medium(event.medium))
        case BlockRemoved():
            return BlocksRemoved(tuple(map(_as_bytes, event.block_hashes)), Medium(event.medium))
        case _:
            return BlocksCleared()


class EventReader:
    """It asks for a replay when it comes late or has lost a batch, and refuses an answer with a gap, as vllm-router.

    `numbers`: of the batches that it received. `num_replays`: those that it asked for.
    """

    def __init__(self, endpoint: str, replay: str, size: int, topic: str = "") -> None:
        self._context, self._replay, self._topic = zmq.Context[zmq.Socket[bytes]](), replay, topic.encode()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(endpoint)
        self._socket.subscribe(self._topic)
        self.picture = Picture(size)
        self.batches: list[list[BlockEvent]] = []
        self.numbers: list[int] = []
        self.num_replays = 0
        self._last = -1

    def close(self) -> None:
        self._context.destroy(linger=0)

    def lose(self) -> None:
        """The next batch is lost."""
        self._socket.recv_multipart()

    def read(self) -> list[BlockEvent]:
        """The next batch, applied; behind a gap that which the replay says."""
        topic, number_bytes, payload = self._socket.recv_multipart()
        assert topic == self._topic
        number = int.from_bytes(number_bytes, "big")
        self.numbers.append(number)
        if number < self._last:
            self.picture.apply([BlocksCleared()])
            self._last = -1
        if number == self._last + 1:
            self._apply(payload)
            self._last = number
        elif number > self._last and self._replay:
            self._catch_up(number)
        elif number > self._last:
            self.picture.apply([BlocksCleared()])
            self._apply(payload)
            self._last = number
        return self.batches[-1] if self.batches else []

    def _catch_up(self, through: int) -> None:
        self.num_replays += 1
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
            dealer.connect(self._replay)
            dealer.send_multipart((b"", (self._last + 1).to_bytes(8, "big")))
            while self._last < through:
                empty, topic, number, payload = dealer.recv_multipart()
                assert (empty, topic, number != END) == (b"", self._topic, True)
                assert int.from_bytes(number, "big") == self._last + 1
                self._apply(payload)
                self._last += 1

    def _apply(self, payload: bytes) -> None:
        batch = msgspec.msgpack.decode(payload, type=EventBatch)
        assert batch.data_parallel_rank is None
        self.batches.append([published(event) for event in batch.events])
        self.picture.apply(self.batches[-1])
