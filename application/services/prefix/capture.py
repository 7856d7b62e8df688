"""Takes state out of one sequence as it is computed: full blocks as they fill up, snapshots where they are wanted.

What was captured is offered at once, during prefill, so that a cancelled request leaves everything it computed. A
chain never gets a hole: from the first block that cannot be captured whole, nothing more of the sequence is offered.
Compute thread only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from application.ports.compute import LoadedModel
from application.ports.tokenizer import EncodedPrompt
from application.services.prefix.tenure import Tenure
from application.services.prefix.tiers import Lookup, PrefixTiers
from domain.fork_point import ForkKind
from domain.hashing import BlockChain, snapshot_key
from domain.ids import SequenceId
from domain.payload import GroupPayloads
from domain.prefix import ReuseRules
from domain.record import BlockKey, NamespaceInfo, Provenance, Record, SnapshotKey
from domain.snapshot_policy import SnapshotRules, is_end_worthwhile, plan_snapshots, thin_snapshots


@dataclass(frozen=True, slots=True)
class Captured:
    """What one call took out; zeros when nothing was due."""

    num_blocks: int = 0
    num_snapshots: int = 0
    size_bytes: int = 0


class StateCapture:
    """`start`: where computing begins. `is_canonical`: whether the state restored there was computed on the grid."""

    def __init__(
        self,
        tiers: PrefixTiers,
        info: NamespaceInfo,
        chain: BlockChain,
        rules: ReuseRules,
        prompt: EncodedPrompt,
        lookup: Lookup,
        start: int,
        *,
        is_canonical: bool,
        tenure: Tenure,
        persist: bool,
    ) -> None:
        self._tiers = tiers
        self._tenure = tenure
        self._info = info
        self._chain = chain
        self._rules = rules
        self._prompt = prompt
        self._tokens = list(prompt.token_ids)
        self._position = start
        self._next_block = start // rules.block_size
        self._is_hot, self._is_persisted = lookup.is_hot, lookup.is_stored
        self._persist = persist
        self._is_storing = persist and tiers.persists
        # What only the hot tier has is taken again where it is passed, or it would never be stored.
        is_kept = lookup.stored_snapshots if self._is_storing else lookup.snapshots.keys()
        self._snapshots = {at: key for at, key in lookup.snapshots.items() if at <= start or at in is_kept}
        self._policy = SnapshotRules(rules.needs_snapshots, rules.block_size, rules.grid, rules.is_exact)
        self._due = set(plan_snapshots(len(prompt.token_ids), start, prompt.fork_points, self._policy))
        self._mine = {start}
        self._is_canonical = is_canonical
        self._is_broken = False

    @property
    def stops(self) -> tuple[int, ...]:
        """Positions at which prefill must pause, ascending. Slices can be cut afterwards, recurrent states cannot."""
        if not self._rules.needs_snapshots:
            return ()
        return tuple(sorted(position for position in self._due if position > self._position))

    @property
    def is_canonical(self) -> bool:
        """Whether the state was computed on the grid so far."""
        return self._is_canonical

    def expect(self, position: int) -> None:
        """Somebody will resume at `position` of the prompt: take a snapshot there, if it is still ahead."""
        if position > self._position:
            self._due.add(position)

    def after_prefill(self, model: LoadedModel, id: SequenceId, position: int) -> Captured:
        """A chunk up to `position` has been computed."""
        grid = self._rules.grid
        self._is_canonical &= self._position % grid == 0 and position == self._position + grid
        due = [at for at in sorted(self._due) if self._position < at <= position]
        return self._capture(model, id, position, due)

    def after_decode(self, model: LoadedModel, id: SequenceId, output_ids: Sequence[int]) -> Captured:
        """Tokens were decoded; `output_ids` are all of them so far. Cheap while no block has filled up."""
        num_tokens = len(self._prompt.token_ids) + len(output_ids)
        if self._is_broken or num_tokens // self._rules.block_size <= self._next_block:
            return Captured()
        self._take_output(output_ids)
        return self._capture(model, id, min(model.position(id), len(self._tokens)), ())

    def at_end(self, model: LoadedModel, id: SequenceId, output_ids: Sequence[int]) -> Captured:
        """The sequence ends, done or cancelled; its state is still there."""
        self._take_output(output_ids)
        reached = model.position(id)
        position = min(reached, len(self._tokens))
        last = max((at for at in self._mine | self._snapshots.keys() if at <= position), default=0)
        # Of a state that has run ahead of the tokens known here slices can be cut, but no snapshot taken.
        is_possible = reached == position or not self._rules.needs_snapshots
        is_worthwhile = is_possible and is_end_worthwhile(position, last, self._policy)
        captured = self._capture(model, id, position, [position] if is_worthwhile else ())
        self._thin()
        return captured

    def _take_output(self, output_ids: Sequence[int]) -> None:
        fresh = output_ids[len(self._tokens) - len(self._prompt.token_ids) :]
        self._tokens += fresh
        self._chain.feed(fresh)

    def _capture(self, model: LoadedModel, id: SequenceId, position: int, snapshots: Sequence[int]) -> Captured:
        self._is_canonical &= position < len(self._prompt.token_ids)
        self._position = position
        self._is_broken |= self._rules.is_exact and not self._is_canonical
        if self._is_broken:
            return Captured()
        wanted = [at for at in snapshots if self._snapshot_key(at) != self._snapshots.get(at)]
        records = self._due_blocks(model, id, position // self._rules.block_size)
        if self._rules.needs_snapshots:
            records += [self._snapshot_here(model, id)] if position in wanted else []
        else:
            records += self._tails(model, id, wanted)
        return self._hand_over(sorted(records, key=lambda record: record.position))

    def _due_blocks(self, model: LoadedModel, id: SequenceId, end: int) -> list[Record]:
        """Full blocks up to index `end` that are not where they are to be kept already."""
        blocks = [at for at in range(self._next_block, end) if not self._is_kept(at)]
        self._next_block = end
        size = self._rules.block_size
        slices = self._slices(model, id, [(at * size, (at + 1) * size) for at in blocks])
        return [self._block(at, groups) for at, groups in zip(blocks, slices, strict=True)]

    def _is_kept(self, index: int) -> bool:
        """What follows a block that only the hot tier has could not be stored without it."""
        is_hot = index < len(self._is_hot) and self._is_hot[index]
        return is_hot and (self._is_persisted[index] or not self._is_storing)

    def _snapshot_here(self, model: LoadedModel, id: SequenceId) -> Record:
        position, size = self._position, self._rules.block_size
        return self._snapshot(position, model.capture_snapshot(id, position // size * size))

    def _tails(self, model: LoadedModel, id: SequenceId, positions: list[int]) -> list[Record]:
        """Partial blocks: all that a snapshot holds where there are no recurrent layers."""
        size = self._rules.block_size
        inside = [at for at in positions if at % size]
        slices = self._slices(model, id, [(at // size * size, at) for at in inside])
        return [self._snapshot(at, groups) for at, groups in zip(inside, slices, strict=True)]

    def _slices(self, model: LoadedModel, id: SequenceId, spans: list[tuple[int, int]]) -> Sequence[GroupPayloads]:
        if not spans or not self._rules.sliced_groups:
            return [{} for _ in spans]
        return model.capture_blocks(id, spans)

    def _hand_over(self, records: list[Record]) -> Captured:
        """Offer records, parents first, up to the first block that lacks a group."""
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
        if not whole:
            return Captured()
        with self._tenure.held() as may_keep:
            if not may_keep:
                self._is_broken = True
                return Captured()
            self._tiers.keep(whole)
            fresh = [record for record in whole if not self._has_stored(record)]
            self._is_storing = self._is_storing and self._tiers.store_behind(self._info, fresh)
        num_blocks = sum(isinstance(record.key, BlockKey) for record in whole)
        size_bytes = sum(payload.size_bytes for record in whole for payload in record.groups.values())
        return Captured(num_blocks, len(whole) - num_blocks, size_bytes)

    def _has_stored(self, record: Record) -> bool:
        index = record.position // self._rules.block_size - 1
        is_block = isinstance(record.key, BlockKey)
        return is_block and index < len(self._is_persisted) and self._is_persisted[index]

    def _block(self, index: int, groups: GroupPayloads) -> Record:
        size = self._rules.block_size
        key = BlockKey(self._chain.namespace, self._chain.hashes[index])
        end = (index + 1) * size
        tokens = tuple(self._tokens[index * size : end])
        return Record(key, self._chain.parent(index), end, tokens, groups, self._provenance)

    def _snapshot(self, position: int, groups: GroupPayloads) -> Record:
        key = self._snapshot_key(position)
        tokens = tuple(self._tokens[position - key.num_partial : position])
        return Record(key, key.block_hash, position, tokens, groups, self._provenance)

    def _snapshot_key(self, position: int) -> SnapshotKey:
        index, partial = divmod(position, self._rules.block_size)
        tokens = self._tokens[position - partial : position]
        return snapshot_key(self._chain.namespace, self._chain.parent(index), tokens)

    @property
    def _provenance(self) -> Provenance:
        return Provenance.PREFILL if self._is_canonical else Provenance.DECODE

    def _thin(self) -> None:
        """Let go of snapshots that this chain has too many of; what this sequence took itself stays.

        Tails too: inside a block that has filled up since, one saves less than a block to who branches off there.
        """
        forks = self._prompt.fork_points
        kept = {fork.position for fork in forks if fork.kind is not ForkKind.TURN} | self._mine
        turns = {fork.position for fork in forks if fork.kind is ForkKind.TURN}
        end = max([self._position, *self._snapshots])
        dropped = thin_snapshots(sorted(self._snapshots), end, kept, turns)
        keys = [self._snapshots.pop(position) for position in dropped]
        if self._persist:
            self._tiers.discard(keys)
        else:  # what it took itself is not stored, so what is stored must not go for it
            self._tiers.hot.remove(keys)


__all__ = ("Captured", "StateCapture")
