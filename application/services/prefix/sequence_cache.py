"""The engine's view of the prefix cache: one SequenceCache for each sequence, from submission to its end.

    begin ──► look ──► prepare ──► poll, until ready ──► restore ──► prefilled, decoded, ... ──► end | abandon
    (hashing) (in the queue)       (fetching)                                            └► suspend, abandon

Compute thread only.
"""

from collections.abc import Sequence

from application.ports.state_access import StateAccess
from domain.ids import BlockHash, SequenceId
from domain.prefix.explanation import Explanation
from domain.scheduling.step_values import TakeOver


class SequenceCache:
    """The interface, and its implementation for a sequence that reuses and keeps nothing: its layout is unsupported, or
    reuse is off. `explanation`: what was reused and why no more; final once restored."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation

    @property
    def stops(self) -> tuple[int, ...]:
        """Positions at which prefill must pause, ascending; may grow while prefilling."""
        return ()

    @property
    def is_looked_up(self) -> bool:
        """True when the position to resume at is known; the records may still have to be fetched."""
        return True

    @property
    def is_waiting(self) -> bool:
        """True when the sequence was admitted and its prefix waits for room in memory."""
        return False

    @property
    def follows(self) -> SequenceId | None:
        """In the queue: the running sequence that computes more of this prompt than is kept yet."""
        return None

    @property
    def next_block(self) -> BlockHash | None:
        """In the queue: the first block that the sequence would compute; if two have the same one, the second waits."""
        return None

    @property
    def takes_over(self) -> TakeOver | None:
        """Until it is restored: the live state that it continues without a copy. In the queue another sequence may
        still take it first; once admitted it is this one's."""
        return None

    def look(self) -> None:
        """Finds out where to resume and which sequence to follow; called for queued sequences before each step is
        planned. Cheap."""

    def prepare(self, *, ahead: bool = False) -> None:
        """Looks once more and fetches if there is room, because the sequence is admitted or will be soon (`ahead`).
        Cheap; repeated calls make progress, as `poll` does."""

    def poll(self) -> bool:
        """Makes progress, once prepared; returns True when `restore` may be called. Cheap, called once a step while not
        ready."""
        return True

    def restore(self, model: StateAccess) -> int:
        """Restores the (open, empty) sequence at the furthest available position; returns the position."""
        return 0

    def prefilled(self, model: StateAccess, position: int) -> None:
        """Notes that a chunk up to `position` has been computed."""

    def paced(self, num_tokens: int, duration_ns: int) -> None:
        """Notes how long computing a chunk took."""

    def decoded(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        """Notes that a token was decoded; `output_ids` are all so far."""

    def end(self, model: StateAccess, output_ids: Sequence[int]) -> bool:
        """Keeps the state of a sequence that finished or was cancelled; its state is still open. Returns True when the
        model's sequence was ended by this, and need not be closed."""
        return False

    def suspend(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        """Keeps all records that resuming at this position takes, because the sequence is about to be preempted. It may
        still decode before it is abandoned; a new cache begins then."""

    def abandon(self) -> None:
        """Abandons a sequence that failed or never had a state. Idempotent, also after `end`."""
