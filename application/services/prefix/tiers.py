"""All tiers as one place to look prompts up in: memory first, then stores, in order.

Memory is looked at when the answer is used, by whoever uses it; stores are asked by workers beforehand. So what is in
memory is never out of date, and what a store says may be: see `is_outdated`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from application.ports.block_store import EraseReport
from application.services.prefix.arrivals import Arrivals
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.live_states import LiveStates
from application.services.prefix.store_lanes import StoreLanes, StoreRead
from application.services.prefix.stored_tier import StoredTier
from application.services.prefix.tenure import Tenures
from domain.explanation import StopReason
from domain.hashing import BlockChain
from domain.holdings import Found, Holdings, match_holdings, num_leading_blocks
from domain.ids import GroupIndex
from domain.namespace_choice import NamespaceChoice
from domain.prefix import ReuseRules
from domain.record import NamespaceInfo, Record, RecordKey
from domain.snapshot_place import by_position, snapshot_places

HOT = "hot"

Answers = Mapping[str, Holdings | None]
"""What stores said, by tier; None for one that did not answer in time."""


@dataclass(frozen=True, slots=True)
class Question:
    """What stores were asked about a prompt. `reads`: by tier; None for one that is stuck. `num_arrivals`: counted when
    they were asked. Any thread."""

    chain: BlockChain
    reads: Mapping[str, StoreRead[Holdings] | None]
    num_arrivals: int

    @property
    def is_settled(self) -> bool:
        """Every store has answered, or will not in time."""
        return all(read is None or read.is_done or read.is_hopeless for read in self.reads.values())

    def answers(self) -> Answers:
        return {name: read.answer if read is not None and read.is_done else None for name, read in self.reads.items()}

    def abandon(self) -> None:
        """Nobody waits for what has not come yet."""
        for read in self.reads.values():
            if read is not None:
                read.abandon()


class PrefixTiers:
    """Any thread. `stored`: the tiers behind memory, fastest first; none when nothing is persisted. `lanes`: for work
    that concerns all tiers. `live`: beside them, for it holds no records."""

    def __init__(
        self, hot: HotTier, stored: Sequence[StoredTier], lanes: StoreLanes, live: LiveStates | None = None
    ) -> None:
        self.hot = hot
        self.live = live or LiveStates()
        self.stored = tuple(stored)
        self.lanes = lanes
        self.arrivals = Arrivals()
        self.tenures = Tenures()

    @property
    def keeps_anything(self) -> bool:
        """Whether what is captured can be had at once: from memory, or on its way to a store."""
        return bool(self.hot.budget_bytes) or any(tier.writer is not None for tier in self.stored)

    def at_rest(self) -> "PrefixTiers":
        """What a restart would leave: no memory, and of the stores what is written."""
        return PrefixTiers(HotTier(0), [tier.at_rest() for tier in self.stored], self.lanes)

    def ask(self, chain: BlockChain, on_done: Callable[[], None]) -> Question:
        """Let workers ask every store about a prompt."""
        num_arrivals = self.arrivals.count
        reads = {tier.name: tier.lanes.look_up(partial(self.find, tier, chain), on_done) for tier in self.stored}
        return Question(chain, reads, num_arrivals)

    def find(self, tier: StoredTier, chain: BlockChain) -> Holdings:
        """What a store has of a prompt. Blocks for its reads."""
        return tier.find(chain, partial(self._hot_blocks, chain, None))

    def find_all(self, chain: BlockChain) -> Answers:
        """The same of every store, one after the other."""
        return {tier.name: self.find(tier, chain) for tier in self.stored}

    def unanswered(self) -> Answers:
        return dict.fromkeys((tier.name for tier in self.stored), None)

    def match(
        self, chain: BlockChain, rules: ReuseRules, answers: Answers, absent: frozenset[RecordKey] = frozenset()
    ) -> Found:
        """How far the prompt can be restored, leaving `absent` records out of account. No I/O.

        Of a store that did not answer it is assumed that it has what memory has, or all of that would be stored again.
        """
        hot = self._hot_blocks(chain, rules)
        answered = [answer for answer in answers.values() if answer is not None]
        known = [held.without(chain, absent) for held in (hot, *answered)]
        places = snapshot_places(chain, num_leading_blocks(chain, known))
        found = by_position(self.hot.find_snapshots(chain.namespace, places), chain.block_size)
        hot = replace(hot, snapshots=found)
        there = {name: answer or Holdings(hot.blocks, hot.snapshots) for name, answer in answers.items()}
        holdings = {name: held.without(chain, absent) for name, held in {HOT: hot, **there}.items()}
        outcome = match_holdings(chain, rules, holdings, self.arrivals)
        if None in answers.values() and outcome.match.position < rules.grid.furthest(chain.num_prompt):
            return replace(outcome, match=replace(outcome.match, reason=StopReason.SLOW_STORE))
        return outcome

    def is_outdated(self, question: Question, found: Found, rules: ReuseRules) -> bool:
        """Whether asking again may find more: a store was stuck, or records of this prompt came in since."""
        chain, position = found.chain, found.match.position
        if position >= rules.grid.furthest(chain.num_prompt):
            return False
        first = position // chain.block_size
        places = (chain.parent(index) for index in range(first, chain.num_prompt // chain.block_size + 1))
        is_refused = None in question.reads.values()
        return is_refused or self.arrivals.any_since(question.num_arrivals, places)

    def keep(self, records: Sequence[Record]) -> None:
        """Put records into memory."""
        self.hot.put(records)
        self.arrivals.note(records)

    def discard(self, keys: Sequence[RecordKey]) -> None:
        """Let records go, with all that follows them in the stores."""
        self.hot.remove(keys)
        for tier in self.stored:
            tier.discard(keys)

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Note a use in the stores. Memory notes its own."""
        for tier in self.stored:
            tier.touch(keys)

    def clear(self, choice: NamespaceChoice, known: Iterable[NamespaceInfo]) -> tuple[int, EraseReport]:
        """Remove everything of these namespaces, for good: from memory, queues and stores. Returns how many records
        memory had, and what the stores say. `known`: namespaces that may be in memory; what is there of others goes as
        well. Blocks: not for the compute thread.

        What runs and was begun before leaves nothing behind from then on.
        """
        self.tenures.end(choice.includes)
        self.live.note_cleared()
        written = [tier.writer for tier in self.stored if tier.writer is not None]
        stored = [usage.info for writer in written for usage in writer.store.usage().namespaces]
        num_hot = self.hot.forget({info.namespace for info in (*known, *stored) if not choice.includes(info)})
        if choice.is_everything:
            self.arrivals.clear()
        reports = [writer.erase(None if choice.is_everything else choice.includes) for writer in written]
        num_records, num_bytes = sum(one.num_records for one in reports), sum(one.num_bytes for one in reports)
        return num_hot, EraseReport(num_records, num_bytes, "; ".join(one.problem for one in reports if one.problem))

    def _hot_blocks(self, chain: BlockChain, rules: ReuseRules | None) -> Holdings:
        """The blocks in memory; which of them in part is told only with `rules`."""
        held = self.hot.held(chain.prompt_keys())
        whole: frozenset[GroupIndex] = rules.sliced_groups if rules is not None else frozenset()
        partial_blocks = {index for index, groups in enumerate(held) if groups is not None and not groups >= whole}
        return Holdings(tuple(groups is not None for groups in held), partial=frozenset(partial_blocks))


__all__ = ("HOT", "Answers", "PrefixTiers", "Question")
