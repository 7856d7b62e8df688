"""State access: captured state out of an open sequence, and back into one. All that the prefix cache needs of a model.

Threading and errors as in `application.ports.compute`; a sequence's *position* is defined there.
"""

from collections.abc import Sequence
from typing import Protocol

from domain.ids import SequenceId
from domain.payload import GroupPayloads


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


__all__ = ("StateAccess",)
