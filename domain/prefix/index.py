"""The prefix index of one namespace: every kept block and snapshot, and the places where each is.

    prompt   |--block 0--|--block 1--|--block 2--|--block 3--|-rest-
    hot           x           x                      snapshot ^         a record may be in several places:
    stored                    x           x                             together they reach the end of block 2

The store has one writer, this process, so presence is known and need not be asked: whatever enters or leaves a tier is
added or removed here by its key. A lookup is one call without I/O. Its cost grows with the prompt's blocks, and with
the lengths of the snapshots that follow them (fewer than a block has tokens), however many other prompts follow the
same block: a snapshot's key is a digest of the tokens after the block, so a prompt names its own.

Not safe for threads: whoever owns it holds a lock.
"""

from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from itertools import takewhile

from domain.id_row import ID_BYTES
from domain.ids import BlockHash
from domain.prefix.explanation import StopReason
from domain.prefix.hashing import BlockChain
from domain.prefix.match import PrefixMatch, ReuseRules, find_prefix
from domain.prefix.record import BlockKey, Namespace, RecordKey, SnapshotKey

HOT, QUEUED, STORED = 1, 2, 4
"""Places as bits: in the hot tier, waiting to be stored, in the store."""

PERSISTED = QUEUED | STORED
ANYWHERE = HOT | QUEUED | STORED

MAX_FORGOTTEN = 65_536
"""Blocks that were here and are not any more, remembered to tell "evicted" from "never seen"."""


class PrefixIndex:
    """See the module docstring. `num_in_memory`: records that are hot or queued."""

    __slots__ = ("_blocks", "_forgotten", "_snapshots", "namespace", "num_in_memory", "num_records")

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.num_in_memory = self.num_records = 0
        self._blocks: dict[bytes, int] = {}
        self._snapshots: dict[BlockHash, dict[int, dict[bytes, int]]] = {}
        # 8 bytes of each hash: a mix-up (about once in 10**14) would mislabel a reason.
        self._forgotten: dict[bytes, None] = {}

    def places(self, key: RecordKey) -> int:
        """Where a record is, as bits; 0: nowhere."""
        if isinstance(key, BlockKey):
            return self._blocks.get(key.hash, 0)
        return self._snapshots.get(key.block_hash, {}).get(key.num_partial, {}).get(key.digest, 0)

    def add(self, keys: Iterable[RecordKey], place: int) -> None:
        """These records are there. Repeating it does nothing."""
        for key in keys:
            if isinstance(key, BlockKey):
                group, name = self._blocks, bytes(key.hash)
            else:
                lengths = self._snapshots.setdefault(key.block_hash, {})
                group, name = lengths.setdefault(key.num_partial, {}), key.digest
            before = group.get(name, 0)
            group[name] = before | place
            self._count(before, before | place)

    def remove(self, keys: Iterable[RecordKey], place: int) -> None:
        """These records are there no longer. Repeating it does nothing."""
        for key in keys:
            before = self.places(key)
            after = before & ~place
            if before == after:
                continue
            self._count(before, after)
            if isinstance(key, BlockKey):
                self._set_block(key.hash, after)
            else:
                self._set_snapshot(key, after)

    def remove_all(self, place: int) -> None:
        """Nothing is there any longer."""
        self.remove(self.keys(place), place)

    def keys(self, place: int = ANYWHERE) -> list[RecordKey]:
        """All records that are there, in no order."""
        found: list[RecordKey] = [
            BlockKey(self.namespace, BlockHash(hash)) for hash, places in self._blocks.items() if places & place
        ]
        for block_hash, lengths in self._snapshots.items():
            for num_partial, digests in lengths.items():
                found += [
                    SnapshotKey(self.namespace, block_hash, num_partial, digest)
                    for digest, places in digests.items()
                    if places & place
                ]
        return found

    def match(
        self,
        chain: BlockChain,
        rules: ReuseRules,
        absent: Collection[RecordKey] = (),
        place: int = ANYWHERE,
        *,
        is_complete: bool = True,
    ) -> PrefixMatch:
        """The furthest position at which every state group of the prompt can be restored. `absent`: records that could
        not be had just now. `place`: where to look. `is_complete` False: it is not known what the store holds."""
        blocks, hashes = self._blocks, chain.ends()
        present = [bool(blocks.get(hash, 0) & place) for hash in hashes[1:]]
        if absent:
            present = [here and key not in absent for here, key in zip(present, chain.prompt_keys(), strict=True)]
        num_run = sum(1 for _ in takewhile(bool, present))
        snapshots = {
            at: key
            for index, hash in enumerate(hashes[: num_run + 1])
            if (lengths := self._snapshots.get(hash)) is not None
            for at, key in _own_snapshots(chain, index, lengths, place)
            if key not in absent
        }
        forgotten = self._forgotten
        evicted = [num_run] if num_run < len(present) and hashes[num_run + 1][:8] in forgotten else ()
        found = find_prefix(chain.num_prompt, chain, present, snapshots, rules, evicted)
        if is_complete or found.position >= rules.grid.furthest(chain.num_prompt):
            return found
        return found.because(StopReason.SLOW_STORE)

    def _set_block(self, hash: BlockHash, places: int) -> None:
        if places:
            self._blocks[hash] = places
            return
        del self._blocks[hash]
        self._forgotten[hash[:8]] = None
        if len(self._forgotten) > MAX_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]

    def _set_snapshot(self, key: SnapshotKey, places: int) -> None:
        lengths = self._snapshots[key.block_hash]
        if places:
            lengths[key.num_partial][key.digest] = places
            return
        del lengths[key.num_partial][key.digest]
        if not lengths[key.num_partial]:
            del lengths[key.num_partial]
        if not lengths:
            del self._snapshots[key.block_hash]

    def _count(self, before: int, after: int) -> None:
        self.num_records += (after > 0) - (before > 0)
        in_memory = HOT | QUEUED
        self.num_in_memory += (after & in_memory > 0) - (before & in_memory > 0)


def _own_snapshots(
    chain: BlockChain, index: int, lengths: Mapping[int, Mapping[bytes, int]], place: int
) -> list[tuple[int, SnapshotKey]]:
    """The prompt's own among the snapshots behind its first `index` blocks, by position. Each token is hashed once."""
    start, parent = index * chain.block_size, chain.parent(index)
    end = min(start + chain.block_size, chain.num_prompt) - 1  # the last prompt token is never restored
    hasher, data, num_hashed = sha256(parent), memoryview(chain.prompt[start:end].to_bytes()), 0
    found: list[tuple[int, SnapshotKey]] = []
    for length in sorted(lengths):
        if length > end - start:
            break
        hasher.update(data[ID_BYTES * num_hashed : ID_BYTES * length])
        num_hashed, digest = length, hasher.digest()
        if start + length and lengths[length].get(digest, 0) & place:
            found.append((start + length, SnapshotKey(chain.namespace, parent, length, digest)))
    return found
