"""Block chains: each block's hash covers everything before it, so equal hashes mean equal prefixes.

    hash_i = SHA-256(hash_{i-1} || token ids of block i as uint32 little endian || extra_i),   hash_{-1} = the root

All 32 bytes are kept: a stored block may live for weeks and be shared, so collisions must stay out of reach.
"""

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from domain.ids import BlockHash
from domain.record import Namespace, SnapshotKey


def token_bytes(token_ids: Iterable[int]) -> bytes:
    """Token ids (0 to 2**32 - 1) as uint32, little endian."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def block_hash(parent: BlockHash, token_ids: Iterable[int], extra: bytes = b"") -> BlockHash:
    """Hash of one full block. `extra`: digests of whatever else its content depends on (media)."""
    return BlockHash(sha256(parent + token_bytes(token_ids) + extra).digest())


def snapshot_key(namespace: Namespace, parent: BlockHash, partial_ids: Sequence[int]) -> SnapshotKey:
    """Key of the snapshot taken `partial_ids` after the end of the block `parent`."""
    digest = sha256(parent + token_bytes(partial_ids)).digest()
    return SnapshotKey(namespace, parent, len(partial_ids), digest)


class PartialDigests:
    """What `snapshot_key` hashes, for every number of tokens after the end of one block. In ascending order each token
    is hashed once."""

    __slots__ = ("_data", "_hasher", "_num_hashed", "_parent")

    def __init__(self, parent: BlockHash, token_ids: Sequence[int]) -> None:
        self._parent = parent
        self._data = memoryview(token_bytes(token_ids))
        self._hasher = sha256(parent)
        self._num_hashed = 0

    def at(self, num_partial: int) -> bytes:
        """The digest over the parent and the first `num_partial` tokens."""
        if num_partial < self._num_hashed:
            self._hasher, self._num_hashed = sha256(self._parent), 0
        self._hasher.update(self._data[4 * self._num_hashed : 4 * num_partial])
        self._num_hashed = num_partial
        return self._hasher.digest()


class BlockChain:
    """The chain of one token stream, extended as tokens come. Not thread-safe while it is fed.

    `hashes[i]` belongs to tokens [i * block_size, (i + 1) * block_size). Splitting a stream over several `feed` calls
    changes nothing.
    """

    __slots__ = ("_extras", "_pending", "block_size", "hashes", "namespace")

    def __init__(self, namespace: Namespace, block_size: int, extras: Mapping[int, bytes] | None = None) -> None:
        """`extras`: block index to extra bytes, for blocks whose content depends on more than tokens."""
        self.namespace = namespace
        self.block_size = block_size
        self.hashes: list[BlockHash] = []
        self._extras = extras or {}
        self._pending = b""

    @property
    def root(self) -> BlockHash:
        return BlockHash(self.namespace)

    def parent(self, num_blocks: int) -> BlockHash:
        """What follows `num_blocks` full blocks hangs on this hash."""
        return self.hashes[num_blocks - 1] if num_blocks else self.root

    def feed(self, token_ids: Sequence[int]) -> list[BlockHash]:
        """Append tokens; returns the hashes of the blocks that became full."""
        data = memoryview(self._pending + token_bytes(token_ids))
        step = 4 * self.block_size
        first = len(self.hashes)
        parent = self.parent(first)
        end = len(data) - len(data) % step
        for at in range(0, end, step):
            hasher = sha256(parent)
            hasher.update(data[at : at + step])
            if self._extras:
                hasher.update(self._extras.get(len(self.hashes), b""))
            parent = BlockHash(hasher.digest())
            self.hashes.append(parent)
        self._pending = bytes(data[end:])
        return self.hashes[first:]


__all__ = ("BlockChain", "PartialDigests", "block_hash", "snapshot_key", "token_bytes")
