"""After which blocks a prompt may have snapshots, and what their keys are: how its own are found among all others.

A snapshot's key is a digest of what the prompt says after the end of a block, so whoever knows the prompt can name all
of its snapshots, and nobody has to list those of other prompts: thousands may follow the block that ends a shared
system prompt.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from domain.hashing import BlockChain
from domain.id_row import ID_BYTES, IdRow
from domain.ids import BlockHash
from domain.record import Namespace, SnapshotKey


class SnapshotPlace(NamedTuple):
    """How a prompt goes on after a block (or after the namespace's root): by its ids from `start` to before `end`, less
    than a block of them, and as far as a snapshot can be used.

    They are cut out when somebody asks: a long prompt has hundreds of places, and hardly any has snapshots."""

    block_hash: BlockHash
    ids: IdRow
    start: int = 0
    end: int | None = None

    @property
    def next_ids(self) -> IdRow:
        return self.ids[self.start : self.end]


class OwnSnapshots:
    """The keys of all snapshots that a prompt could have at one place, by number of ids. Asked for in ascending order,
    each id is hashed once."""

    __slots__ = ("_data", "_hasher", "_namespace", "_num_hashed", "_place", "max_partial")

    def __init__(self, namespace: Namespace, place: SnapshotPlace) -> None:
        next_ids = place.next_ids
        self.max_partial = len(next_ids)
        self._namespace = namespace
        self._place = place
        self._data = memoryview(next_ids.to_bytes())
        self._hasher = sha256(place.block_hash)
        self._num_hashed = 0

    def key(self, num_partial: int) -> SnapshotKey:
        """`num_partial` from 0 to `max_partial`. What `snapshot_key` gives for the first so many ids."""
        place = self._place
        if num_partial < self._num_hashed:
            self._hasher, self._num_hashed = sha256(place.block_hash), 0
        self._hasher.update(self._data[ID_BYTES * self._num_hashed : ID_BYTES * num_partial])
        self._num_hashed = num_partial
        return SnapshotKey(self._namespace, place.block_hash, num_partial, self._hasher.digest())


def snapshot_places(chain: BlockChain, num_blocks: int) -> list[SnapshotPlace]:
    """The start of the prompt and the ends of its first `num_blocks` blocks, with what follows there.

    The last prompt token is never restored, so no snapshot that holds it is of use.
    """
    size, last = chain.block_size, chain.num_prompt - 1
    starts = range(0, min((num_blocks + 1) * size, last + 1), size)
    return [
        SnapshotPlace(block_hash, chain.prompt, start, min(start + size - 1, last))
        for start, block_hash in zip(starts, chain.ends(), strict=False)
    ]


def by_position(found: Sequence[Sequence[SnapshotKey]], block_size: int) -> dict[int, SnapshotKey]:
    """Snapshots found at the places of `snapshot_places`, by the position that they restore. The start needs none."""
    return {
        index * block_size + key.num_partial: key
        for index, keys in enumerate(found)
        for key in keys
        if index or key.num_partial
    }


__all__ = ("OwnSnapshots", "SnapshotPlace", "by_position", "snapshot_places")
