"""Where snapshots of one prompt may hang, and what their keys are: how its own are found among those of others.

A snapshot's key is a digest of what the prompt says after the end of a block, so whoever knows the prompt can name all
of its snapshots, and nobody has to list those of other prompts: thousands may hang on the block that ends a shared
system prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from domain.hashing import PartialDigests
from domain.ids import BlockHash
from domain.record import Namespace, SnapshotKey


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """How a prompt goes on after a block (or after the namespace itself): `next_ids`, less than a block of them, and as
    far as a snapshot can be used."""

    block_hash: BlockHash
    next_ids: tuple[int, ...]


class OwnSnapshots:
    """The keys of all snapshots that a prompt could have at one place, by number of tokens. Asked for in ascending
    order, each token is hashed once."""

    __slots__ = ("_block_hash", "_digests", "_namespace", "max_partial")

    def __init__(self, namespace: Namespace, place: SnapshotPlace) -> None:
        self._namespace = namespace
        self._block_hash = place.block_hash
        self._digests = PartialDigests(place.block_hash, place.next_ids)
        self.max_partial = len(place.next_ids)

    def key(self, num_partial: int) -> SnapshotKey:
        """`num_partial` from 0 to `max_partial`."""
        return SnapshotKey(self._namespace, self._block_hash, num_partial, self._digests.at(num_partial))


def snapshot_places(
    prompt_ids: Sequence[int], namespace: Namespace, hashes: Sequence[BlockHash], block_size: int
) -> list[SnapshotPlace]:
    """The start of the prompt and the ends of its first blocks, whose `hashes` these are, with what follows there.

    The last prompt token is never restored, so no snapshot that holds it is of use.
    """
    parents = [BlockHash(namespace), *hashes]
    last = len(prompt_ids) - 1
    starts = range(0, min(len(parents) * block_size, last + 1), block_size)
    return [
        SnapshotPlace(parent, tuple(prompt_ids[start : min(start + block_size - 1, last)]))
        for parent, start in zip(parents, starts, strict=False)
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
