"""How far a prompt's state can be restored from the records that are present. Pure; `prefix_index` knows which are.

A position p can be resumed at when every state group can be restored exactly there:

    group       needs
    ALL         every block up to p
    TRAILING    the blocks that the window before p still touches
    SNAPSHOT    a snapshot exactly at p

    blocks    |--0--|--1--|--2--|--3--|     p is the end of block 3
    ALL          x     x     x     x
    TRAILING                 x     x        a sliding window of a block and a half touches two
    SNAPSHOT                          x     recurrent state: there is nothing to cut it from

A p inside a block needs a snapshot there in any case (for an attention-only model it is the partial block's tail). The
last prompt token is never restored: it is computed, because its logits are wanted.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from domain.ids import GroupIndex
from domain.models.state_layout import HitPolicy, StateGroup, StateLayout
from domain.prefix.block_grid import BlockGrid
from domain.prefix.explanation import StopReason
from domain.prefix.hashing import BlockChain
from domain.prefix.record import BlockKey, SnapshotKey


@dataclass(frozen=True, slots=True)
class ReuseRules:
    """What reuse depends on: a model's state groups, and how prompts are cut."""

    groups: tuple[StateGroup, ...]
    grid: BlockGrid

    @classmethod
    def of(cls, layout: StateLayout, grid: BlockGrid) -> "ReuseRules":
        return cls(layout.groups, grid)

    @property
    def needs_snapshots(self) -> bool:
        return any(group.policy is HitPolicy.SNAPSHOT for group in self.groups)

    @property
    def is_cut_anywhere(self) -> bool:
        """Whether a state still holds all tokens before it, to be cut out at any time."""
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
        """The same of the first so many blocks: only those within the widest window differ from the first one."""
        widest = max((group.window or 0 for group in self.groups if group.policy is HitPolicy.TRAILING), default=0)
        num_equal = min(num_blocks, max(0, position - widest) // self.grid.block_size)
        equal = [self.needed_groups(position, 0)] * num_equal if num_equal else []
        return equal + [self.needed_groups(position, index) for index in range(num_equal, num_blocks)]


@dataclass(frozen=True, slots=True)
class BlockNeed:
    """One block to fetch, and which of its groups. Empty `groups`: its state is not needed, only its place."""

    key: BlockKey
    groups: frozenset[GroupIndex]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Where to resume and what to fetch for it.

    `blocks`: block 0 onward, all full blocks before `position`. `snapshot`: to be restored with them, or None.
    `num_known`: tokens covered by the unbroken run of present blocks from the start. `snapshots`: all that the prompt
    has behind those, by position.
    """

    position: int
    blocks: tuple[BlockNeed, ...]
    snapshot: SnapshotKey | None
    num_known: int
    reason: StopReason
    snapshots: Mapping[int, SnapshotKey] = field(default_factory=dict[int, SnapshotKey])

    def because(self, reason: StopReason) -> "PrefixMatch":
        """The same for another reason."""
        return replace(self, reason=reason)


def find_prefix(
    num_prompt: int,
    chain: BlockChain,
    present: Sequence[bool],
    snapshots: Mapping[int, SnapshotKey],
    rules: ReuseRules,
    evicted: Collection[int] = (),
) -> PrefixMatch:
    """The furthest position below `num_prompt` at which every group can be restored.

    `present[i]`: block i can be fetched (in exact mode: and was computed on the grid); as long as `chain.hashes`
    covers the prompt. `snapshots`: the prompt's, by position. `evicted`: indices of absent blocks that were here.
    """
    num_run = sum(1 for _ in takewhile(bool, present))
    limit = num_prompt - 1
    candidates = set(snapshots)
    if not rules.needs_snapshots:
        candidates |= {(index + 1) * rules.grid.block_size for index in range(len(present))}
    for position in sorted(candidates, reverse=True):
        if 0 < position <= limit and _restorable(position, present, num_run, snapshots, rules):
            break
    else:
        position = 0
    num_blocks = position // rules.grid.block_size
    needs = tuple(map(BlockNeed, chain.prompt_keys()[:num_blocks], rules.all_needed_groups(position, num_blocks)))
    needs_snapshot = rules.needs_snapshots or position % rules.grid.block_size
    return PrefixMatch(
        position,
        needs,
        snapshots[position] if position and needs_snapshot else None,
        num_run * rules.grid.block_size,
        _stop_reason(position, limit, num_run, rules, evicted),
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


def _stop_reason(position: int, limit: int, num_run: int, rules: ReuseRules, evicted: Collection[int]) -> StopReason:
    if position == limit:
        return StopReason.LAST_TOKEN
    reach = min(num_run * rules.grid.block_size, limit)
    step = rules.grid.step
    if rules.grid.is_exact and (limit < position + step or position < reach < position + step):
        return StopReason.OFF_GRID
    if reach > position:
        return StopReason.NO_SNAPSHOT if rules.needs_snapshots else StopReason.PARTIAL_BLOCK
    if num_run in evicted:
        return StopReason.EVICTED
    return StopReason.NEVER_SEEN
