"""Who computes which prefix right now, so that nobody computes it a second time.

A sequence whose prompt shares tokens with an earlier one that has not got that far yet waits for it, and resumes where
the two part. Waiting only ever points from a later sequence to an earlier one, so there are no cycles. Nor by what the
queue waits for: later ones may be admitted first (they need less memory, or go before), and who is admitted follows
only who is, too. Compute thread.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from domain.block_grid import BlockGrid
from domain.hashing import BlockChain
from domain.ids import RequestId, SequenceId

MIN_SHARED_TOKENS = 32
"""Waiting for less than this is not worth it."""


class InFlight(Protocol):
    """A sequence that began and has not ended. `position`: tokens its state covers now. `chain`: None until hashed."""

    @property
    def id(self) -> SequenceId: ...

    @property
    def request_id(self) -> RequestId: ...

    @property
    def chain(self) -> BlockChain | None: ...

    @property
    def position(self) -> int: ...

    @property
    def is_admitted(self) -> bool:
        """Whether it has left the queue, and nothing but its own work keeps it from getting further."""
        ...

    @property
    def shares(self) -> bool:
        """Whether others may count on finding what it computes."""
        ...

    def expect(self, position: int) -> None:
        """A later sequence waits for this one to pass `position` and will resume there."""
        ...


Other = TypeVar("Other", bound=InFlight)


def find_owner(
    id: SequenceId, chain: BlockChain, reusable: int, others: Iterable[Other], grid: BlockGrid
) -> tuple[Other, int] | None:
    """The earlier sequence that will compute most of this prompt, and up to where; None if nobody helps.

    `reusable`: where the prompt can be resumed already.
    """
    best: tuple[Other, int] | None = None
    for other in others:
        if other.id >= id or not other.shares or other.chain is None:
            continue
        limit = min(chain.num_prompt, other.chain.num_prompt) - 1
        target = grid.last_resumable(min(chain.num_shared(other.chain), limit))
        if other.position < target and target >= reusable + MIN_SHARED_TOKENS and (best is None or target > best[1]):
            best = (other, target)
    return best


__all__ = ("MIN_SHARED_TOKENS", "InFlight", "find_owner")
