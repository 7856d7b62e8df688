"""The prefix index of one namespace: every kept block and snapshot, the places where each is, and how far they reach.

    prompt   |--block 0--|--block 1--|--block 2--|--block 3--|-rest-
    hot           x           x                      snapshot ^         a record may be in several places:
    stored                    x           x                             together they reach the end of block 2

The store has one writer, this process, so presence is known: each record that enters or leaves a tier is added or
removed here by its key. `match` is one call without I/O. It costs time for the prompt's blocks, and for the lengths of
the snapshots that follow them (fewer than a block has tokens), but not for other prompts that follow the same block: a
snapshot's key is a digest of the tokens after the block, so a prompt names its own.

A prompt can be resumed at position p if every state group can be restored exactly there:

    group       needs
    ALL         every block up to p
    TRAILING    the blocks that the window before p still touches
    SNAPSHOT    a snapshot exactly at p

    blocks    |--0--|--1--|--2--|--3--|     p is the end of block 3
    ALL          x     x     x     x
    TRAILING                 x     x        a sliding window of a block and a half touches two
    SNAPSHOT x recurrent state: there is nothing to cut it from

A p inside a block needs a snapshot there in any case (for an attention-only model it is the partial block's tail). The
last prompt token is never restored: it is computed, because its logits are wanted.

Not safe for threads: the owner of an index holds a lock.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import takewhile

from domain.id_row import ID_BYTES
from domain.ids import BlockHash, GroupIndex
from domain.models.state_layout import HitPolicy, StateGroup, StateLayout
from domain.prefix.explanation import StopReason
from domain.prefix.hashing import BlockChain
from domain.prefix.prompt_content import BlockGrid, MediaSpan
from domain.prefix.record import MAX_POSITION, BlockKey, NamespaceInfo, RecordKey, SnapshotKey


@dataclass(frozen=True, slots=True)
class ReuseRules:
    """The rules of reuse for a model: its state groups, the grid by which prompts are cut, and whether images are not
    (see `plan_step`)."""

    groups: tuple[StateGroup, ...]
    grid: BlockGrid
    image_is_whole: bool = False

    @classmethod
    def of(cls, layout: StateLayout, grid: BlockGrid, *, image_is_whole: bool = False) -> "ReuseRules":
        return cls(layout.groups, grid, image_is_whole)

    def last_kept(self, media: Sequence[MediaSpan]) -> int:
        """Returns the last position of a prompt with these images whose state can be kept. Only an exact grid has one:
        the grid line before the first image that a chunk would cut, because the chunk ends elsewhere there."""
        if not (self.image_is_whole and self.grid.is_exact):
            return MAX_POSITION
        cut = (span.start for span in media if self.grid.chunk_end(span.start) < span.end)
        return min((start // self.grid.step * self.grid.step for start in cut), default=MAX_POSITION)

    @property
    def needs_snapshots(self) -> bool:
        return any(group.policy is HitPolicy.SNAPSHOT for group in self.groups)

    @property
    def is_cut_anywhere(self) -> bool:
        """True when a state still holds all tokens before it, so that any block can be captured at any time."""
        return all(group.policy is HitPolicy.ALL for group in self.groups)

    @property
    def sliced_groups(self) -> frozenset[GroupIndex]:
        """The groups that blocks hold."""
        return frozenset(group.index for group in self.groups if group.policy is not HitPolicy.SNAPSHOT)

    def snapshot_groups(self, num_partial: int) -> frozenset[GroupIndex]:
        """The groups that a snapshot `num_partial` tokens after a block's end holds."""
        recurrent = frozenset(group.index for group in self.groups) - self.sliced_groups
        return recurrent | self.sliced_groups if num_partial else recurrent

    def needed_groups(self, position: int, index: int) -> frozenset[GroupIndex]:
        """The groups whose state in block `index` is needed to resume at `position` (block ends at or before it)."""
        block_end = (index + 1) * self.grid.block_size
        needed = {group.index for group in self.groups if group.policy is HitPolicy.ALL}
        for group in self.groups:
            if group.policy is HitPolicy.TRAILING and block_end > position - (group.window or 0):
                needed.add(group.index)
        return frozenset(needed)

    def all_needed_groups(self, position: int, num_blocks: int) -> list[frozenset[GroupIndex]]:
        """The needed groups of the first `num_blocks` blocks. Those before the widest window are equal."""
        widest = max((group.window or 0 for group in self.groups if group.policy is HitPolicy.TRAILING), default=0)
        num_equal = min(num_blocks, max(0, position - widest) // self.grid.block_size)
        equal = [self.needed_groups(position, 0)] * num_equal if num_equal else []
        return equal + [self.needed_groups(position, index) for index in range(num_equal, num_blocks)]


@dataclass(frozen=True, slots=True)
class RecordNeed:
    """One record to restore, and which of its groups. Empty `groups`: the record must exist, without its state."""

    key: RecordKey
    groups: frozenset[GroupIndex]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The result of a lookup: the position to resume at, and the records to restore for it.

    `needs`: all full blocks before `position`, from the start, and then the snapshot at `position` if one is needed.
    `num_known`: tokens covered by the unbroken run of present blocks from the start. `snapshots`: all that the prompt
    has behind those, by position.
    """

    position: int
    needs: tuple[RecordNeed, ...]
    num_known: int
    reason: StopReason
    snapshots: Mapping[int, SnapshotKey] = field(default_factory=dict[int, SnapshotKey])

    def because(self, reason: StopReason) -> "PrefixMatch":
        """Returns a copy with another reason."""
        return replace(self, reason=reason)


def find_prefix(
    chain: BlockChain,
    present: Sequence[bool],
    snapshots: Mapping[int, SnapshotKey],
    rules: ReuseRules,
    *,
    is_evicted: bool = False,
) -> PrefixMatch:
    """Returns the furthest position before the prompt's last token at which every group can be restored. `present[i]`:
    block i can be fetched (in exact mode: and was computed on the grid). `snapshots`: the prompt's, by position.
    `is_evicted`: the first absent block was present before.
    """
    num_run = sum(1 for _ in takewhile(bool, present))
    limit = chain.num_prompt - 1
    candidates = set(snapshots)
    if not rules.needs_snapshots:
        candidates |= {(index + 1) * rules.grid.block_size for index in range(len(present))}
    for position in sorted(candidates, reverse=True):
        if 0 < position <= limit and _restorable(position, present, num_run, snapshots, rules):
            break
    else:
        position = 0
    size, num_blocks = rules.grid.block_size, position // rules.grid.block_size
    pairs = zip(chain.prompt_keys()[:num_blocks], rules.all_needed_groups(position, num_blocks), strict=True)
    needs = [RecordNeed(key, groups, size) for key, groups in pairs]
    if position and (rules.needs_snapshots or position % size):
        last = snapshots[position]
        needs.append(RecordNeed(last, rules.snapshot_groups(last.num_partial), last.num_partial))
    return PrefixMatch(
        position,
        tuple(needs),
        num_run * size,
        _stop_reason(position, limit, num_run, rules, is_evicted=is_evicted),
        snapshots,
    )


def _restorable(
    position: int, present: Sequence[bool], num_run: int, snapshots: Mapping[int, SnapshotKey], rules: ReuseRules
) -> bool:
    if not rules.grid.is_resumable(position):
        return False
    num_blocks = position // rules.grid.block_size
    if position not in snapshots and (rules.needs_snapshots or position % rules.grid.block_size):
        return False
    if num_blocks <= num_run:
        return True
    if num_blocks > len(present):
        return False
    return all(present[index] or not rules.needed_groups(position, index) for index in range(num_run, num_blocks))


def _stop_reason(position: int, limit: int, num_run: int, rules: ReuseRules, *, is_evicted: bool) -> StopReason:
    if 0 < position == limit:
        return StopReason.LAST_TOKEN
    reach = min(num_run * rules.grid.block_size, limit)
    step = rules.grid.step
    if rules.grid.is_exact and (limit < position + step or position < reach < position + step):
        return StopReason.OFF_GRID
    if reach > position:
        return StopReason.NO_SNAPSHOT if rules.needs_snapshots else StopReason.PARTIAL_BLOCK
    return StopReason.EVICTED if is_evicted else StopReason.NEVER_SEEN


@dataclass(frozen=True, slots=True)
class SharedRecords:
    """Records of one prompt that a shared store claimed to have when it was asked: no index knows them, and a fetch may
    miss. `snapshots`: by position."""

    blocks: frozenset[BlockHash] = frozenset()
    snapshots: Mapping[int, SnapshotKey] = field(default_factory=dict[int, SnapshotKey])


NOTHING_SHARED = SharedRecords()

HOT, QUEUED, STORED = 1, 2, 4
"""The places as bits: in the hot tier, waiting to be stored, in the store."""

PERSISTED = QUEUED | STORED
ANYWHERE = HOT | QUEUED | STORED

MAX_FORGOTTEN = 65_536
"""The number of removed blocks that are remembered, to distinguish "evicted" from "never seen"."""


class PrefixIndex:
    """The records of one namespace in one epoch, by key, with their places. An epoch begins with the first use of the
    namespace, and each time it is cleared.

    `infos`: its names, because equal models share one namespace; `info`: the last one used. `is_over`: it was cleared.
    `is_known`: all stored records are here. `num_in_memory`: those that are hot or queued. `note_changed`: called with
    each record that came, went or changed its places; it returns at once and calls no index.
    """

    def __init__(self, info: NamespaceInfo, *, is_known: bool = True) -> None:
        self.info, self.infos, self.namespace = info, {info}, info.namespace
        self.is_known, self.is_over = is_known, False
        self.num_in_memory = 0
        self.note_changed: Callable[[RecordKey], object] | None = None
        self._blocks: dict[bytes, int] = {}
        self._snapshots: dict[BlockHash, dict[int, dict[bytes, int]]] = {}
        # 8 bytes of each hash: a mix-up (about once in 10**14) would mislabel a reason.
        self._forgotten: dict[bytes, None] = {}

    def places(self, key: RecordKey) -> int:
        """The places of a record, as bits; 0 for none."""
        if isinstance(key, BlockKey):
            return self._blocks.get(key.hash, 0)
        return self._snapshots.get(key.block_hash, {}).get(key.num_partial, {}).get(key.digest, 0)

    def add(self, keys: Iterable[RecordKey], place: int) -> None:
        """Add records to a place. Idempotent."""
        for key in keys:
            if isinstance(key, BlockKey):
                group, name = self._blocks, bytes(key.hash)
            else:
                lengths = self._snapshots.setdefault(key.block_hash, {})
                group, name = lengths.setdefault(key.num_partial, {}), key.digest
            before = group.get(name, 0)
            group[name] = before | place
            self._count(key, before, before | place)

    def remove(self, keys: Iterable[RecordKey], place: int) -> None:
        """Remove records from a place. Idempotent."""
        for key in keys:
            before = self.places(key)
            after = before & ~place
            if before == after:
                continue
            self._count(key, before, after)
            if isinstance(key, BlockKey):
                self._set_block(key.hash, after)
            else:
                self._set_snapshot(key, after)

    def remove_all(self, place: int) -> None:
        """Remove all records from a place."""
        self.remove(self.keys(place), place)

    def keys(self, place: int = ANYWHERE) -> list[RecordKey]:
        """Returns the keys of all records, in no order."""
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
        shared: SharedRecords = NOTHING_SHARED,
    ) -> PrefixMatch:
        """Returns the furthest position at which every state group of the prompt can be restored. `absent`: records
        that could not be read just now. `place`: the places to search. `shared`: records that are elsewhere."""
        blocks, hashes, others = self._blocks, chain.ends(), shared.blocks
        present = [bool(blocks.get(hash, 0) & place) or hash in others for hash in hashes[1:]]
        if absent:
            present = [here and key not in absent for here, key in zip(present, chain.prompt_keys(), strict=True)]
        num_run = sum(1 for _ in takewhile(bool, present))
        snapshots = {
            at: key for at, key in shared.snapshots.items() if at // chain.block_size <= num_run and key not in absent
        } | {
            at: key
            for index, hash in enumerate(hashes[: num_run + 1])
            if (lengths := self._snapshots.get(hash)) is not None
            for at, key in _own_snapshots(chain, index, lengths, place)
            if key not in absent
        }
        is_evicted = num_run < len(present) and hashes[num_run + 1][:8] in self._forgotten
        found = find_prefix(chain, present, snapshots, rules, is_evicted=is_evicted)
        if self.is_known or found.position >= rules.grid.furthest(chain.num_prompt):
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

    def _count(self, key: RecordKey, before: int, after: int) -> None:
        in_memory = HOT | QUEUED
        self.num_in_memory += (after & in_memory > 0) - (before & in_memory > 0)
        if self.note_changed is not None and before != after:
            self.note_changed(key)


def _own_snapshots(
    chain: BlockChain, index: int, lengths: Mapping[int, Mapping[bytes, int]], place: int
) -> list[tuple[int, SnapshotKey]]:
    """Returns the prompt's own among the snapshots after its first `index` blocks, by position. Each token is hashed
    once."""
    start, parent = index * chain.block_size, chain.parent(index)
    end = min(start + chain.block_size, chain.num_prompt) - 1  # the last prompt token is never restored
    hasher, data, num_hashed = sha256(parent), memoryview(chain.prompt[start:end].to_bytes()), 0
    found: list[tuple[int, SnapshotKey]] = []
    for length in sorted(lengths):
        if length > end - start:
            break
        hasher.update(data[ID_BYTES * num_hashed : ID_BYTES * length])
        num_hashed, whole = length, hasher
        if digests := chain.digests(start, start + length):
            whole = hasher.copy()
            whole.update(digests)
        digest = whole.digest()
        if start + length and lengths[length].get(digest, 0) & place:
            found.append((start + length, SnapshotKey(chain.namespace, parent, length, digest)))
    return found
