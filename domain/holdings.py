"""What the tiers hold of one prompt, and how far that restores it. Pure: the tiers were asked before.

prompt   |--block 0--|--block 1--|--block 2--|--block 3--|-rest-
hot           x           x                                          a tier may have what another lacks:
store                     x           x                              together they reach the end of block 2
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest

from domain.hashing import BlockChain
from domain.ids import BlockHash
from domain.prefix import PrefixMatch, ReuseRules, find_prefix
from domain.record import BlockKey, RecordKey, SnapshotKey


@dataclass(frozen=True, slots=True)
class Holdings:
    """One tier's, of one prompt. `blocks[i]`: whether it has full block i; what lies behind the end it has not.

    `partial`: indices of blocks of which it has some state groups only. `snapshots`: the usable ones, by position.
    """

    blocks: tuple[bool, ...] = ()
    snapshots: Mapping[int, SnapshotKey] = field(default_factory=dict[int, SnapshotKey])
    partial: frozenset[int] = frozenset()

    def has(self, index: int) -> bool:
        return index < len(self.blocks) and self.blocks[index]

    def has_whole(self, index: int) -> bool:
        return self.has(index) and index not in self.partial

    def num_leading(self, most: int) -> int:
        """How many of the first so many blocks it has, without a gap from the first one on."""
        leading = self.blocks[:most]
        return len(leading) if all(leading) else leading.index(False)

    def without(self, chain: BlockChain, absent: Collection[RecordKey]) -> "Holdings":
        """The same less what turned out not to be there."""
        if not absent:
            return self
        keys = chain.prompt_keys()
        blocks = tuple(here and keys[index] not in absent for index, here in enumerate(self.blocks))
        return Holdings(blocks, {at: key for at, key in self.snapshots.items() if key not in absent}, self.partial)


@dataclass(frozen=True, slots=True)
class Found:
    """A lookup's outcome: where the prompt is resumed, and what each tier holds of it, by its name, fastest first."""

    chain: BlockChain
    match: PrefixMatch
    holdings: Mapping[str, Holdings]

    @property
    def snapshots(self) -> dict[int, SnapshotKey]:
        """By position: all that some tier has."""
        return {at: key for held in self.holdings.values() for at, key in held.snapshots.items()}

    def num_cold(self, hot: str) -> int:
        """Tokens of the match that the tier of this name does not hold whole."""
        held, size, position = self.holdings.get(hot, Holdings()), self.chain.block_size, self.match.position
        num_cold = sum(size for index in range(position // size) if not held.has_whole(index))
        return num_cold + (0 if position in held.snapshots else position % size)

    def holder(self, key: RecordKey, index: int, names: Collection[str]) -> str | None:
        """The first tier among `names` that has a record of the match: block `index`, or its snapshot."""
        position = self.match.position
        for name, held in self.holdings.items():
            has = held.has(index) if isinstance(key, BlockKey) else position in held.snapshots
            if has and name in names:
                return name
        return None


def num_leading_blocks(chain: BlockChain, holdings: Sequence[Holdings]) -> int:
    """How many blocks from the prompt's start on some tier has, without a gap."""
    return sum(1 for _ in takewhile(bool, _present(chain, holdings)))


def match_holdings(
    chain: BlockChain, rules: ReuseRules, holdings: Mapping[str, Holdings], was_here: Container[BlockHash]
) -> Found:
    """The furthest position that all tiers together restore. `was_here`: blocks that some tier had at some time."""
    indices = range(chain.num_prompt // chain.block_size)
    present = _present(chain, holdings.values())
    evicted = [index for index in indices if not present[index] and chain.hashes[index] in was_here]
    snapshots = {at: key for held in holdings.values() for at, key in held.snapshots.items()}
    match = find_prefix(chain.num_prompt, chain, present, snapshots, rules, evicted)
    return Found(chain, match, holdings)


def _present(chain: BlockChain, holdings: Iterable[Holdings]) -> list[bool]:
    """Which of the prompt's full blocks some tier has."""
    num_blocks = chain.num_prompt // chain.block_size
    present = [any(held) for held in zip_longest(*(one.blocks for one in holdings), fillvalue=False)][:num_blocks]
    return present + [False] * (num_blocks - len(present))


__all__ = ("Found", "Holdings", "match_holdings", "num_leading_blocks")
