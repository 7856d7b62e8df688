"""The point from which a prompt is resumed: the furthest position that records or a live state reach. No I/O."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from application.services.prefix.live_tier import LiveState
from application.services.prefix.shared.tier import SharedAsk
from application.services.prefix.tiers import PrefixTiers
from domain.ids import BlockHash
from domain.memory.shape import MemoryShape
from domain.prefix.explanation import StopReason
from domain.prefix.hashing import BlockChain
from domain.prefix.index import ANYWHERE, HOT, NOTHING_SHARED, PrefixIndex, PrefixMatch, ReuseRules
from domain.prefix.prompt_content import BlockGrid
from domain.prefix.record import RecordKey

_UNRESTORED = (StopReason.NO_ROOM, StopReason.SLOW_STORE, StopReason.SLOW_SHARED)
"""Reasons that say already why what was found was not restored."""

REST_PARTS = 8
"""The rest of a prompt is waited for from so small a part of a block on: to compute less costs no more than to wait."""


@dataclass(frozen=True, slots=True)
class Resume:
    """A way to resume a sequence: by records (`match`), or by a `live` state that reaches at least as far. `reach`:
    tokens that are available at once; those after them have to be fetched or computed. `next_block`: the hash of the
    first block after them or, where that is not full, of the rest of the prompt; None for a short rest."""

    chain: BlockChain
    match: PrefixMatch
    reach: int
    next_block: BlockHash | None
    live: LiveState | None = None
    live_position: int = 0

    @property
    def position(self) -> int:
        return max(self.match.position, self.live_position)

    def because(self, reason: StopReason) -> "Resume":
        """Returns a copy with another reason."""
        return replace(self, match=self.match.because(reason))

    def unrestored(self, reason: StopReason) -> "Resume":
        """Returns what is left where nothing is restored for this reason: the match, which says what is known."""
        is_said = not self.position or self.match.reason in _UNRESTORED
        return replace(self if is_said else self.because(reason), live=None, live_position=0)

    def target(self, theirs: BlockChain, grid: BlockGrid) -> int:
        """Returns the position to resume at once another sequence has computed its own prompt; 0 where that is neither
        the rest of this one nor at least a block more than what is available now."""
        chain, size = self.chain, self.chain.block_size
        at = min(self.reach // size, len(chain.hashes) - 1)
        if chain.hashes[at : at + 1] != theirs.hashes[at : at + 1]:
            return 0  # where a block is equal its hash is, and so is everything before it
        limit = min(chain.num_prompt, theirs.num_prompt) - 1
        target = grid.last_resumable(min(chain.num_shared(theirs), limit))
        least = self.reach + (size // REST_PARTS if target == grid.furthest(chain.num_prompt) else size)
        return target if target >= least else 0


def find_resume(
    tiers: PrefixTiers,
    epoch: PrefixIndex,
    chain: BlockChain,
    rules: ReuseRules,
    shape: MemoryShape,
    live_model: str | None,
    ask: SharedAsk | None,
    absent: Collection[RecordKey],
    is_late: bool,
) -> Resume:
    """Finds the furthest position to resume at. A live state is preferred to records that reach no further, because
    taking it over copies nothing. `live_model`: the model whose live states are searched; None: no model's. `ask`: the
    shared tier's answer. `absent`: records that could not be read. `is_late`: the store was, and only memory is used.
    """
    grid, place = rules.grid, HOT if is_late else ANYWHERE
    shared = ask.finds.records if ask is not None else NOTHING_SHARED
    match = tiers.indexes.match(epoch, chain, rules, absent, place, shared)
    if (is_late or (ask is not None and ask.is_late)) and match.position < grid.furthest(chain.num_prompt):
        match = match.because(StopReason.SLOW_STORE if is_late else StopReason.SLOW_SHARED)
    found = tiers.live.find(chain, live_model, grid) if live_model is not None else None
    live, at = found if found is not None and found[1] >= match.position else (None, 0)
    reach = at if live is not None else _num_hot(tiers, match, shape, chain.block_size)
    return Resume(chain, match, reach, _block_at(chain, grid, reach if live_model is not None else 0), live, at)


def _block_at(chain: BlockChain, grid: BlockGrid, reach: int) -> BlockHash | None:
    """Returns `Resume.next_block`."""
    index, last = reach // chain.block_size, grid.furthest(chain.num_prompt)
    if index < chain.num_prompt // chain.block_size:
        return chain.hashes[index]
    is_short = last < reach + chain.block_size // REST_PARTS
    return None if is_short else BlockHash(chain.snapshot_key(last).digest)


def _num_hot(tiers: PrefixTiers, match: PrefixMatch, shape: MemoryShape, block_size: int) -> int:
    """Returns the leading tokens of the match that need not be read; all of them where memory could not keep the
    records."""
    are_hot = tiers.hot.holds(match.needs)
    if all(are_hot) or shape.state_bytes(match.position) > tiers.hot.budget_bytes:
        return match.position
    return are_hot.index(False) * block_size
