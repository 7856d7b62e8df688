"""The capture of one sequence: takes state out as it is computed, full blocks as they fill up and snapshots where they
are wanted, and keeps it in memory and in the store, each what it lacks.

Records are kept at once, during prefill, so that a cancelled request leaves everything it computed; the end of a prompt
behind its first token, where the state can still be cut there. A chain never gets a hole: from the first block that
cannot be captured whole nothing more of the sequence is kept, and a store that refused records is offered nothing more.
Once the namespace was cleared nothing is kept at all.

A state is canonical while every chunk since the start was a whole one by the grid: then its bits are those that any
other computation of the same tokens gives. After one chunk of another shape, or a decoded token, what follows is equal
only up to rounding, because it is computed from a state that differs. Records say which they are (Provenance), and in
exact mode nothing is kept that is not canonical.

    step 0    step 1    step 2          prompt end
    |---------|---------|---------|-----|~~~~~~~~ decoded
    canonical blocks ───────────────────►│ not canonical from here on

Compute thread only.
"""

from collections.abc import Sequence

from application.events import StateCaptured
from application.ports.state_access import StateAccess
from application.services.prefix.phases import Ready
from domain.ids import RequestId, SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix.index import ANYWHERE, HOT, PERSISTED, PrefixIndex, PrefixMatch, ReuseRules
from domain.prefix.prompt_content import ForkKind, ForkPoint
from domain.prefix.record import BlockKey, GroupPayloads, Provenance, Record, RecordKey, SnapshotKey
from domain.prefix.snapshot_policy import BEFORE_ANSWER, is_end_worthwhile, plan_snapshots, thin_snapshots

CATCH_UP = 2
"""Chunks' worth of blocks that are captured at once where blocks before a state that was taken over are missing."""


class StateCapture:
    """The capture of one sequence from where it was restored. `num_canonical`: tokens from the start that were computed
    on the grid.

    The methods `after_*` and `at_*` capture and keep records, and report them.
    """

    def __init__(
        self,
        epoch: PrefixIndex,
        rules: ReuseRules,
        forks: Sequence[ForkPoint],
        ready: Ready,
        shape: MemoryShape,
        request_id: RequestId,
        persist: bool,
    ) -> None:
        """`ready`: as it was put in place. `persist` False: records are kept in memory only."""
        resume, fetch, tiers, start = ready.resume, ready.fetch, ready.tiers, ready.start
        self.chain, self.position, self.num_canonical = resume.chain, start, start if ready.is_canonical else 0
        self._tiers, self._epoch, self._rules, self._forks, self._shape = tiers, epoch, rules, forks, shape
        self._request_id, self._persist = request_id, persist
        self._writes = persist and tiers.store.writer is not None
        self._is_canonical, self._is_broken, self._is_awaited = ready.is_canonical, False, False
        self._copied = 0 if resume.live is not None else start  # tokens of a state that records hold
        self._shared = fetch.shared if fetch is not None else dict[RecordKey, Record | None]()
        self._next_block = start // rules.grid.block_size
        if resume.live is not None:  # its blocks may be nowhere: where it still holds all tokens, they are captured too
            first_missing = self._offer_known(resume.match, start, ())
            if rules.is_cut_anywhere and (self._writes or shape.state_bytes(start) <= tiers.hot.budget_bytes):
                self._next_block = first_missing
        elif fetch is not None and self._writes and (restored := fetch.blocks):
            self._offer_known(resume.match, start, restored)
        self._shared = dict.fromkeys(self._shared)  # their bytes are not held any longer
        # A snapshot ahead of the start that only memory has is taken again where the sequence passes it.
        known = resume.match.snapshots.items()
        self._snapshots = {at: key for at, key in known if at <= start or self._has_snapshot(key)}
        # Beyond the last position nothing is kept, and a pause would only change how the rest is rounded.
        self._last = rules.last_kept(self.chain.media)
        self._due = {at for at in plan_snapshots(self.chain.num_prompt, start, forks, rules) if at <= self._last}
        self._mine = {start}

    @property
    def stops(self) -> tuple[int, ...]:
        """Positions at which prefill must pause, ascending. Slices can be cut afterwards, recurrent states cannot."""
        if not self._rules.needs_snapshots:
            return ()
        return tuple(sorted(position for position in self._due if position > self.position))

    def expect(self, position: int) -> None:
        """Plans a snapshot at `position` of the prompt, where another sequence will resume, if it is still ahead."""
        self._is_awaited = True
        if self.position < position <= self._last:
            self._due.add(position)

    def after_prefill(self, model: StateAccess, id: SequenceId, position: int) -> None:
        """A chunk up to `position` has been computed. The end of the prompt is captured behind the first token if the
        state can still be cut then, unless another sequence waits for it."""
        self._is_canonical &= self._rules.grid.is_whole_chunk(self.position, position)
        if self._is_canonical:
            self.num_canonical = position
        is_end = position == self.chain.num_prompt - 1
        if not is_end or self._is_canonical or self._is_awaited or not self._rules.is_cut_anywhere:
            self._capture(model, id, position)

    def after_decode(self, model: StateAccess, id: SequenceId, output_ids: Sequence[int]) -> None:
        """Captures decoded blocks, and the end of the prompt if that is still due. `output_ids`: all output tokens so
        far. Cheap while no block has filled up."""
        num_prompt = self.chain.num_prompt
        is_full = (num_prompt + len(output_ids)) // self._rules.grid.block_size > self._next_block
        if self._is_broken or not (is_full or self.position < num_prompt - 1):
            return
        self._take_output(output_ids)
        self._capture(model, id, min(model.position(id), self.chain.num_tokens))

    def at_end(self, model: StateAccess, id: SequenceId, output_ids: Sequence[int]) -> None:
        """Captures the end of a sequence, finished or cancelled, whose state is still open."""
        self._take_output(output_ids)
        reached = model.position(id)
        position = min(reached, self.chain.num_tokens)
        # The end is worth a snapshot only by the distance from the one before it.
        last = max((at for at in self._mine | self._snapshots.keys() if at <= position), default=0)
        # A state that has run ahead of the known tokens allows slices, but no snapshot.
        is_possible = reached == position or not self._rules.needs_snapshots
        is_wanted = is_possible and is_end_worthwhile(position, last, self._rules)
        self._capture(model, id, position, [position] if is_wanted else ())
        self._thin()

    def at_pause(self, model: StateAccess, id: SequenceId, output_ids: Sequence[int]) -> None:
        """Captures a sequence that is preempted, so that it can be resumed at this position."""
        self._take_output(output_ids)
        reached = model.position(id)
        position = min(reached, self.chain.num_tokens)
        # A state that has run ahead of the known tokens is none of this prefix.
        is_resumable = 0 < position == reached and self._rules.grid.is_resumable(position)
        self._capture(model, id, position, [position] if is_resumable else ())

    def keep_live(self, model: StateAccess, id: SequenceId, model_name: str) -> bool:
        """Leaves the state in the live tier, unless all of it was copied from records. Returns False when the sequence
        is still open."""
        if self.position == self._copied:
            return False
        before = {fork.position for fork in self._forks if fork.kind in BEFORE_ANSWER}
        return self._tiers.live.keep_live(
            model,
            id,
            self.chain,
            self._epoch,
            model_name,
            next_turn=self._rules.grid.last_resumable(min(before, default=self.chain.num_prompt - 1)),
            num_canonical=self.num_canonical,
            size_bytes=self._shape.state_bytes(model.position(id)),
        )

    def _take_output(self, output_ids: Sequence[int]) -> None:
        self.chain.feed(output_ids[self.chain.num_tokens - self.chain.num_prompt :])

    def _capture(self, model: StateAccess, id: SequenceId, position: int, extra: Sequence[int] = ()) -> None:
        """Captures what is due up to `position`, and the `extra` snapshots."""
        started_ns = self._tiers.clock.now_ns()
        snapshots = {at for at in self._due if self.position < at <= position}.union(extra)
        # A prompt ends with a short chunk of its own (`max_last_chunk`), and what follows is decoded a token at a time.
        self._is_canonical &= position < self.chain.num_prompt
        self.position = position
        self._is_broken |= self._rules.grid.is_exact and not self._is_canonical
        if self._is_broken:
            return
        wanted = [at for at in snapshots if self.chain.snapshot_key(at) != self._snapshots.get(at)]
        records = self._due_blocks(model, id, position // self._rules.grid.block_size)
        if self._rules.needs_snapshots:  # a chunk that may not end inside an image has passed stops there
            is_here = position in wanted and model.position(id) == position
            records += [self._snapshot_here(model, id)] if is_here else []
        else:  # none after blocks that are not captured yet
            size = self._rules.grid.block_size
            records += self._tails(model, id, [at for at in wanted if at // size <= self._next_block])
        if captured := self._hand_over(sorted(records, key=lambda record: record.position)):
            at_ns = self._tiers.clock.now_ns()
            self._tiers.events.emit(StateCaptured.of(self._request_id, captured, started_ns, at_ns))

    def _due_blocks(self, model: StateAccess, id: SequenceId, end: int) -> list[Record]:
        """Returns full blocks up to index `end` that are not kept in all tiers yet. At most CATCH_UP chunks' worth at
        once, which bounds the memory of their copies."""
        end = min(end, self._next_block + CATCH_UP * max(1, self._rules.grid.step // self._rules.grid.block_size))
        blocks = [at for at in range(self._next_block, end) if not self._has_block(at)]
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
        """Keeps records, parents first, up to the first block that lacks a group; returns the kept ones."""
        whole: list[Record] = []
        for record in records:
            if isinstance(record.key, BlockKey):
                # A window that has passed the block lacks its tokens. A child without this parent could not be found.
                if frozenset(record.groups) != self._rules.sliced_groups:
                    self._is_broken = True
                    break
            elif frozenset(record.groups) == self._rules.snapshot_groups(record.key.num_partial):
                self._snapshots[record.position] = record.key
                self._mine.add(record.position)
            else:
                continue
            whole.append(record)
        # Clearing waits for this block, so no record is kept behind its back.
        with self._tiers.indexes.lasting(self._epoch) as may_keep:
            if may_keep and whole:
                self._tiers.hot.put(whole)
                self._offer([record for record in whole if self._lacks(record.key)])
        self._is_broken |= bool(whole) and not may_keep
        return whole if may_keep else []

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
        """Drops surplus snapshots of this chain, except those that this sequence took.

        Tails too: inside a block that has filled up since, a tail saves a later branch less than a block. Without
        `persist` nothing of it was stored, and what is stored stays.
        """
        kept = {fork.position for fork in self._forks if fork.kind is not ForkKind.TURN} | self._mine
        turns = {fork.position for fork in self._forks if fork.kind is ForkKind.TURN}
        end = max([self.position, *self._snapshots])
        dropped = thin_snapshots(sorted(self._snapshots), end, kept, turns)
        keys = [self._snapshots.pop(position) for position in dropped]
        if self._persist:
            self._tiers.discard(keys)
        else:
            self._tiers.hot.drop(keys)

    def _has_block(self, index: int) -> bool:
        """Returns whether a block is in memory, whole, and in the store if that is written to."""
        key = BlockKey(self.chain.namespace, self.chain.hashes[index])
        (held,) = self._tiers.hot.get((key,))
        is_hot = held is not None and held.groups.keys() >= self._rules.sliced_groups
        return is_hot and not (self._writes and self._lacks(key))

    def _has_snapshot(self, key: SnapshotKey) -> bool:
        """Returns whether a snapshot is in the store if that is written to, or else anywhere. One that only memory has
        is taken again where it is passed, or it would never be stored."""
        return not self._lacks(key) if self._writes else self._is_in(key, ANYWHERE)

    def _is_in(self, key: RecordKey, place: int) -> bool:
        return bool(self._tiers.indexes.places((key,))[0] & place)

    def _lacks(self, key: RecordKey) -> bool:
        """Returns whether the record is neither stored nor queued."""
        return not self._is_in(key, PERSISTED)

    def _offer(self, records: Sequence[Record]) -> None:
        if records and self._writes:
            self._writes = self._tiers.offer(self._epoch.info, records, self._request_id, self._shared)

    def _offer_known(self, match: PrefixMatch, start: int, restored: Sequence[Record]) -> int:
        """Offers the store what it lacks of the known prefix, or nothing that follows could be stored: it refused the
        records once, they were computed for a request whose state must not be stored, or the shared tier had them.
        Returns the index of the first block that is not kept anywhere then. `restored`: the blocks before `start`,
        where they are at hand."""
        size, groups, hot = self._rules.grid.block_size, self._rules.sliced_groups, self._tiers.hot
        keys = self.chain.prompt_keys()[: start // size]
        are_stored = [self._writes and bool(places & PERSISTED) for places in self._tiers.indexes.places(keys)]
        blocks: Sequence[Record | None] = restored
        pinned: list[RecordKey] = []
        if not restored and not all(are_stored):
            blocks = hot.acquire(keys, [groups] * len(keys))
            pinned += [record.key for record in blocks if record is not None]
        lacking, end = list[Record](), len(keys)
        for at, is_stored in enumerate(are_stored):
            record = None if is_stored else blocks[at]
            if record is not None and frozenset(record.groups) == groups:
                lacking.append(record)
            elif not is_stored:
                end = at
                break
        tails = [
            key
            for position, key in match.snapshots.items()
            if position - key.num_partial <= end * size and self._is_in(key, HOT) and self._lacks(key)
        ]
        found = hot.acquire(tails, [self._rules.snapshot_groups(key.num_partial) for key in tails])
        snapshots = [record for record in found if record is not None]
        with self._tiers.indexes.lasting(self._epoch) as may_keep:
            if may_keep:
                self._offer(sorted([*lacking, *snapshots], key=_parents_first))
        hot.release([*pinned, *(record.key for record in snapshots)])
        return end


def _parents_first(record: Record) -> tuple[int, bool]:
    return record.position, not isinstance(record.key, BlockKey)
