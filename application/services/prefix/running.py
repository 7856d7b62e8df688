"""Who computes which prefix right now, so that a request in the queue that shares it need not compute it again."""

from collections.abc import Iterable
from typing import Protocol

from domain.ids import RequestId, SequenceId
from domain.prefix.hashing import BlockChain
from domain.prefix.match import ReuseRules


class Running(Protocol):
    """A sequence that was admitted and has not ended. `position`: tokens its state covers now."""

    @property
    def id(self) -> SequenceId: ...

    @property
    def request_id(self) -> RequestId: ...

    @property
    def chain(self) -> BlockChain | None: ...

    @property
    def position(self) -> int: ...

    @property
    def shares(self) -> bool:
        """Whether it gets on, and others may count on finding what it computes."""
        ...

    def expect(self, position: int) -> None:
        """A later sequence will resume at `position`."""
        ...


def find_owner(
    id: SequenceId, chain: BlockChain, reached: int, others: Iterable[Running], rules: ReuseRules
) -> tuple[Running, int] | None:
    """The running sequence that will compute most of this prompt, and up to where, if any. `reached`: where
    the prompt can be resumed already."""
    size = chain.block_size
    index = reached // size
    best: tuple[Running, int] | None = None
    for other in others:
        # The next block equal, its hash is, and so is everything before it.
        if other.chain is None or not other.shares or other.id == id:
            continue
        if chain.hashes[index : index + 1] != other.chain.hashes[index : index + 1] or index >= len(chain.hashes):
            continue
        limit = min(chain.num_prompt, other.chain.num_prompt) - 1
        target = rules.grid.last_resumable(min(chain.num_shared(other.chain), limit))
        if other.position < target and target >= reached + size and (best is None or target > best[1]):
            best = other, target
    return best
