"""Takes state out of one sequence as it is computed: full blocks as they fill up, snapshots where they are wanted.

What was captured is kept at once, during prefill, so that a cancelled request leaves everything it computed. A chain
never gets a hole: from the first block that cannot be captured whole, nothing more of the sequence is kept.

A state is canonical while every chunk since the start was a whole step of the grid: then its bits are those that any
other computation of the same tokens gives. One chunk of another shape, or a decoded token, and what follows is equal
only up to rounding, for good: the layers carry the difference on. Records say which they are (Provenance), and in exact
mode nothing is kept that is not canonical.

    step 0    step 1    step 2          prompt end
    |---------|---------|---------|-----|~~~~~~~~ decoded
    canonical blocks ───────────────────►│ not canonical from here on

Compute thread only.
"""

from collections.abc import Sequence
from copy import copy

from application.ports.state_access import StateAccess
from application.services.prefix.keeper import RecordKeeper
from domain.ids import RequestId, SequenceId
from domain.prefix.fork_point import ForkKind, ForkPoint
from domain.prefix.hashing import BlockChain
from domain.prefix.match import PrefixMatch, ReuseRules
from domain.prefix.payload import GroupPayloads
from domain.prefix.record import BlockKey, Provenance, Record
from domain.prefix.snapshot_policy import is_end_worthwhile, plan_snapshots, thin_snapshots

CATCH_UP = 2
"""How many chunks' worth of blocks are taken out at once where some before a state that was taken over are missing."""


class StateCapture:
    """`match`: what was there when computing began, at `start`. `is_canonical`: whether the state restored there is.

    Each method returns the records that it took out and kept.
    """

    def __init__(
        self,
        keeper: RecordKeeper,
        rules: ReuseRules,
        chain: BlockChain,
        match: PrefixMatch,
        forks: Sequence[ForkPoint],
        start: int,
        *,
        is_canonical: bool,
        first_block: int | None = None,
    ) -> None:
        """`first_block`: from where on blocks are taken out; None: from `start` on."""
        self.chain = chain
        self.start = self.position = start
        self._keeper = keeper
        self._rules = rules
        self._forks = forks
        self._next_block = start // rules.grid.block_size if first_block is None else first_block
        known = match.snapshots.items()
        self._snapshots = {at: key for at, key in known if at <= start or keeper.has_snapshot(key)}
        self._due = set(plan_snapshots(self.chain.num_prompt, start, forks, rules))
        self._mine = {start}
        self._is_canonical = is_canonical
        self.num_canonical = start if is_canonical else 0
        self._is_broken = False

    def fork(self, id: RequestId) -> "StateCapture":
        """For a sequence that goes on from the same position in another way."""
        twin = copy(self)
        twin.chain, twin._keeper = self.chain.fork(), self._keeper.fork(id)
        twin._snapshots, twin._due, twin._mine = dict(self._snapshots), set(self._due), set(self._mine)
        return twin

    @property
    def stops(self) -> tuple[int, ...]:
        """Positions at which prefill must pause, ascending. Slices can be cut afterwards, recurrent states cannot."""
        if not self._rules.needs_snapshots:
            return ()
        return tuple(sorted(position for position in self._due if position > self.position))

    @property
    def is_canonical(self) -> bool:
        """Whether the state was computed on the grid so far."""
        return self._is_canonical

    def expect(self, position: int) -> None:
        """Somebody will resume at `position` of the prompt: take a snapshot there, if it is still ahead."""
        if position > self.position:
            self._due.add(position)

    def after_prefill(self, model: StateAccess, id: SequenceId, position: int) -> list[Record]:
        """A chunk up to `position` has been computed."""
        step = self._rules.grid.step
        self._is_canonical &= self.position % step == 0 and position == self.position + step
        if self._is_canonical:
            self.num_canonical = position
        due = [at for at in sorted(self._due) if self.position < at <= position]
        return self._capture(model, id, position, due)

    def after_decode(self, model: StateAccess, id: SequenceId, output_ids: Sequence[int]) -> list[Record]:
        """Tokens were decoded; `output_ids` are all of them so far. Cheap while no block has filled up."""
        num_tokens = self.chain.num_prompt + len(output_ids)
        if self._is_broken or num_tokens // self._rules.grid.block_size <= self._next_block:
            return []
        self._take_output(output_ids)
        return self._capture(model, id, min(model.position(id), self.chain.num_tokens), ())

    def at_end(self, model: StateAccess, id: SequenceId, output_ids: Sequence[int]) -> list[Record]:
        """The sequence ends, done or cancelled; its state is still there."""
        self._take_output(output_ids)
        reached = model.position(id)
        position = min(reached, self.chain.num_tokens)
        last = max((at for at in self._mine | self._snapshots.keys() if at <= position), default=0)
        # Of a state that has run ahead of the tokens known here slices can be cut, but no snapshot taken.
        is_possible = reached == position or not self._rules.needs_snapshots
        is_wanted = is_possible and is_end_worthwhile(position, last, self._rules)
        captured = self._capture(model, id, position, [position] if is_wanted else ())
        self._thin()
        return captured

    def at_pause(self, model: StateAccess, id: SequenceId, output_ids: Sequence[int]) -> list[Record]:
        """The sequence loses its state and goes on later: it is to be resumed right here, if that can be."""
        self._take_output(output_ids)
        reached = model.position(id)
        position = min(reached, self.chain.num_tokens)
        is_resumable = 0 < position == reached and self._rules.grid.is_resumable(position)
        return self._capture(model, id, position, [position] if is_resumable else ())

    def _take_output(self, output_ids: Sequence[int]) -> None:
        self.chain.feed(output_ids[self.chain.num_tokens - self.chain.num_prompt :])

    def _capture(self, model: StateAccess, id: SequenceId, position: int, snapshots: Sequence[int]) -> list[Record]:
        self._is_canonical &= position < self.chain.num_prompt
        self.position = position
        self._is_broken |= self._rules.grid.is_exact and not self._is_canonical
        if self._is_broken:
            return []
        wanted = [at for at in snapshots if self.chain.snapshot_key(at) != self._snapshots.get(at)]
        records = self._due_blocks(model, id, position // self._rules.grid.block_size)
        if self._rules.needs_snapshots:
            records += [self._snapshot_here(model, id)] if position in wanted else []
        else:  # none behind blocks that are still to be caught up with
            size = self._rules.grid.block_size
            records += self._tails(model, id, [at for at in wanted if at // size <= self._next_block])
        return self._hand_over(sorted(records, key=lambda record: record.position))

    def _due_blocks(self, model: StateAccess, id: SequenceId, end: int) -> list[Record]:
        """Full blocks up to index `end` that are not where they are to be kept already. Where many are to be caught up
        with, no more than chunks would give, so that their copies take no more memory at once."""
        end = min(end, self._next_block + CATCH_UP * max(1, self._rules.grid.step // self._rules.grid.block_size))
        blocks = [at for at in range(self._next_block, end) if not self._keeper.has_block(self.chain, at)]
        self._next_block = end
        size = self._rules.grid.block_size
        slices = self._slices(model, id, [(at * size, (at + 1) * size) for at in blocks])
        return [self._block(at, groups) for at, groups in zip(blocks, slices, strict=True)]

    def _snapshot_here(self, model: StateAccess, id: SequenceId) -> Record:
        position, size = self.position, self._rules.grid.block_size
        return self._snapshot(position, model.capture_snapshot(id, position // size * size))

    def _tails(self, model: StateAccess, id: SequenceId, positions: list[int]) -> list[Record]:
        """Partial blocks: all that a snapshot holds where there are no recurrent layers."""
        size = self._rules.grid.block_size
        inside = [at for at in positions if at % size]
        slices = self._slices(model, id, [(at // size * size, at) for at in inside])
        return [self._snapshot(at, groups) for at, groups in zip(inside, slices, strict=True)]

    def _slices(self, model: StateAccess, id: SequenceId, spans: list[tuple[int, int]]) -> Sequence[GroupPayloads]:
        if not spans or not self._rules.sliced_groups:
            return [{} for _ in spans]
        return model.capture_blocks(id, spans)

    def _hand_over(self, records: list[Record]) -> list[Record]:
        """Keep records, parents first, up to the first block that lacks a group."""
        whole: list[Record] = []
        for record in records:
            if isinstance(record.key, BlockKey):
                if frozenset(record.groups) != self._rules.sliced_groups:
                    self._is_broken = True
                    break
            elif frozenset(record.groups) == self._rules.snapshot_groups(record.key.num_partial):
                self._snapshots[record.position] = record.key
                self._mine.add(record.position)
            else:
                continue
            whole.append(record)
        if whole and not self._keeper.keep(whole):
            self._is_broken = True
            return []
        return whole

    def _block(self, index: int, groups: GroupPayloads) -> Record:
        chain, size = self.chain, self._rules.grid.block_size
        start, end = index * size, (index + 1) * size
        key = BlockKey(chain.namespace, chain.hashes[index])
        return Record(key, chain.parent(index), end, chain.key_ids(start, end), groups, self._provenance)

    def _snapshot(self, position: int, groups: GroupPayloads) -> Record:
        key = self.chain.snapshot_key(position)
        own_ids = self.chain.key_ids(position - key.num_partial, position)
        return Record(key, key.block_hash, position, own_ids, groups, self._provenance)

    @property
    def _provenance(self) -> Provenance:
        return Provenance.PREFILL if self._is_canonical else Provenance.DECODE

    def _thin(self) -> None:
        """Let go of snapshots that this chain has too many of; what this sequence took itself stays.

        Tails too: inside a block that has filled up since, one saves less than a block to who branches off there.
        """
        kept = {fork.position for fork in self._forks if fork.kind is not ForkKind.TURN} | self._mine
        turns = {fork.position for fork in self._forks if fork.kind is ForkKind.TURN}
        end = max([self.position, *self._snapshots])
        dropped = thin_snapshots(sorted(self._snapshots), end, kept, turns)
        self._keeper.discard([self._snapshots.pop(position) for position in dropped])
