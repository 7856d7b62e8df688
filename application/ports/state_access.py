"""State access: captured state out of an open sequence, and back into one. All that the prefix cache needs of a model.

Threading and errors as in `application.ports.compute`; a sequence's *position* is defined there.

A sequence that ends may leave its state in the model as it is, and a later one take that over:

    open ──leave──► left ──take_over──► (another sequence's)
                     └──drop──► gone
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from domain.ids import SequenceId
from domain.prefix.record import GroupPayloads


@dataclass(frozen=True, slots=True)
class LeftState:
    """A state whose sequence has ended, and that stays in the model. `position`: tokens it covers. `first`: it can be
    taken over at any position from there on: 1 where every layer holds all tokens, its own position where one is
    windowed or recurrent. `size_bytes`: what it holds, room for more tokens included."""

    position: int
    first: int
    size_bytes: int


class StateAccess(Protocol):
    """The states of a model's open sequences."""

    def open_ids(self) -> frozenset[SequenceId]:
        """Sequences that hold state."""
        ...

    def position(self, id: SequenceId) -> int:
        """Tokens covered by the sequence's state, exactly."""
        ...

    def restore(self, id: SequenceId, position: int, blocks: Sequence[GroupPayloads], snapshot: GroupPayloads) -> None:
        """Put an open sequence at `position` from captured state, replacing whatever it held.

        `blocks`: block 0 onward without a gap; ALL groups in each, TRAILING groups at least in those their window
        still reaches. `snapshot`: what `capture_snapshot` gave at `position` (or, without SNAPSHOT groups, what
        `capture_blocks` gave for the partial block); empty where blocks alone suffice. Where a TRAILING slice is
        shorter than its span, nothing before it is needed.
        Raises ComputeFailed when the pieces do not fit; the sequence is then at position 0, empty.
        """
        ...

    def capture_blocks(self, id: SequenceId, spans: Sequence[tuple[int, int]]) -> Sequence[GroupPayloads]:
        """Copy out token spans [start, end) of every ALL and TRAILING group; every span ends at or before `position`.

        Returned payloads are copies: no live view on the cache remains, and reading one waits until it is computed. A
        TRAILING group gives the longest suffix of the span that it still holds, if that is all of it or at least
        window - 1 tokens (enough to resume anywhere at or after the span's end); with less it is left out of that
        span's mapping. It holds at least window - 1 tokens before those that the last chunk or step fed. Works while
        prefilling and while decoding.
        """
        ...

    def capture_snapshot(self, id: SequenceId, block_start: int) -> GroupPayloads:
        """Copy out what resuming at the current position needs beyond full blocks.

        SNAPSHOT groups: their state now. ALL and TRAILING groups: the slice [block_start, position), as
        `capture_blocks` gives it; left out where that is empty.
        """
        ...

    def leave(self, id: SequenceId, *, may_copy: bool = True) -> LeftState | None:
        """End an open sequence and let its state stay, under its id, until it is taken over or dropped.

        Nothing is copied but the state of a row of a batch: its own bytes, a layer at a time, and only if that
        `may_copy`. None when nothing stays: it may not, or cannot; the sequence is closed then. Never raises
        ComputeFailed.
        """
        ...

    def left_ids(self) -> frozenset[SequenceId]:
        """Ids of states that were left and are still there; none of them is open."""
        ...

    def drop(self, ids: Sequence[SequenceId]) -> None:
        """Let go of states that were left. Ids under which nothing was left are ignored."""
        ...

    def take_over(self, id: SequenceId, left: SequenceId, position: int) -> None:
        """Put an open sequence that holds nothing at `position` from a state that was left, which is gone then.

        `position`: at least 1, and one of those that its LeftState allows. The state moves: of
        a buffer the most of which would be unused what remains is copied, and nothing else.
        What follows is computed as if the tokens up to `position` had been computed in the same chunks by this
        sequence. Raises ComputeFailed when it cannot be done; the sequence then holds nothing, at position 0.
        """
        ...
