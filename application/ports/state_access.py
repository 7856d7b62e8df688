"""State access: captures state from an open sequence and restores it into another, for the prefix cache.

Threading and errors as in `application.ports.compute`; a sequence's *position* is defined there.

A sequence that ends may leave its state in the model, and a later sequence may take that over:

    open ──leave──► left ──take_over──► (another sequence's)
                     └──drop──► gone
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from domain.errors import ComputeFailed
from domain.ids import SequenceId
from domain.prefix.record import GroupPayloads


@dataclass(frozen=True, slots=True)
class LeftState:
    """A live state: its sequence has ended, and it stays in the model. `position`: number of tokens it covers. `first`:
    the first position at which it can be taken over: 1 where every layer holds all tokens, its own position where one
    is windowed or recurrent. `size_bytes`: its memory, including spare buffer slots."""

    position: int
    first: int
    size_bytes: int


class StateMisfit(ComputeFailed):
    """The pieces given to `restore` do not fit the model (missing tokens or tensors, a wrong shape, dtype or number of
    bytes), and never will: their records are of no use. Any other ComputeFailed, such as a lack of memory, may pass."""


class StateAccess(Protocol):
    """The states of a model's open sequences."""

    def open_ids(self) -> frozenset[SequenceId]:
        """Returns the sequences that hold state."""
        ...

    def position(self, id: SequenceId) -> int:
        """Returns the exact number of tokens covered by the sequence's state."""
        ...

    def restore(self, id: SequenceId, position: int, blocks: Sequence[GroupPayloads], snapshot: GroupPayloads) -> None:
        """Restores captured state into an open sequence at `position`, and replaces the state it held.

        `blocks`: block 0 onward without a gap; ALL groups in each, TRAILING groups at least in those that their window
        still reaches. `snapshot`: the result of `capture_snapshot` at `position` (or, without SNAPSHOT groups, of
        `capture_blocks` for the partial block); empty where blocks alone suffice. Where a TRAILING slice is shorter
        than its span, nothing before it is needed. Raises StateMisfit when the pieces do not fit, and ComputeFailed on
        any other failure, after which the same pieces may be restored; the sequence is then empty, at position 0.
        """
        ...

    def capture_blocks(self, id: SequenceId, spans: Sequence[tuple[int, int]]) -> Sequence[GroupPayloads]:
        """Copies token spans [start, end) of every ALL and TRAILING group; every span ends at or before `position`.

        Returned payloads are copies without a live view on the cache; reading one waits until it is computed. A
        TRAILING group gives the longest suffix of the span that it still holds, if that is all of it or at least
        window - 1 tokens (enough to resume at or after the span's end); otherwise that span's mapping lacks the group.
        It holds at least window - 1 tokens before those that the last chunk or step fed. Works while prefilling and
        while decoding.
        """
        ...

    def capture_snapshot(self, id: SequenceId, block_start: int) -> GroupPayloads:
        """Copies the state that resuming at the current position needs beyond full blocks.

        SNAPSHOT groups: their present state. ALL and TRAILING groups: the slice [block_start, position), as
        `capture_blocks` gives it; missing where that is empty.
        """
        ...

    def keep_live(self, id: SequenceId, *, may_copy: bool = True) -> LeftState | None:
        """Ends an open sequence and keeps its state under its id until it is taken over or dropped.

        Only the state of a row of a batch is copied: its own bytes, a layer at a time, and only with `may_copy`.
        Returns None when the state cannot stay; the sequence is closed then. Never raises ComputeFailed.
        """
        ...

    def left_ids(self) -> frozenset[SequenceId]:
        """Returns the ids of the live states; none of them is open."""
        ...

    def drop(self, ids: Sequence[SequenceId]) -> None:
        """Releases live states. Ids without one are ignored."""
        ...

    def take_over(self, id: SequenceId, left: SequenceId, position: int) -> None:
        """Moves a live state into an open, empty sequence at `position`; the live state is gone then.

        `position`: at least 1, and allowed by its LeftState. Nothing is copied, except the remaining part of a buffer
        that would be mostly unused. The sequence continues as if it had computed the tokens up to `position` in the
        same chunks. Raises ComputeFailed on failure; the sequence is then empty, at position 0.
        """
        ...
