"""The engine's view of the prefix cache: one SequenceCache for each sequence, from submission to its end.

    begin ──► look ──► prepare ──► poll, until ready ──► restore ──► prefilled, decoded, ... ──► end | abandon
    (hashing) (in the queue)       (fetching)                             │              └► suspend, abandon
                                                                          └► fork, for a further choice

Compute thread only.
"""

from collections.abc import Sequence
from dataclasses import replace

from application.ports.state_access import StateAccess
from domain.ids import BlockHash, RequestId, SequenceId
from domain.prefix.explanation import Explanation
from domain.scheduling.step_values import TakeOver


class SequenceCache:
    """The face, and its form for a sequence that reuses nothing and keeps nothing: the layout is unsupported, or reuse
    is off. `explanation`: what was reused and why no more; final once restored."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation
        self._position = 0

    @property
    def stops(self) -> tuple[int, ...]:
        """Positions at which prefill must pause, ascending; may grow while prefilling."""
        return ()

    @property
    def is_looked_up(self) -> bool:
        """True when it is known where the sequence resumes; that may still have to be fetched."""
        return True

    @property
    def is_waiting(self) -> bool:
        """True when the sequence was admitted and its prefix waits for room in memory."""
        return False

    @property
    def follows(self) -> SequenceId | None:
        """In the queue: the running sequence that computes more of this prompt than there is yet."""
        return None

    @property
    def next_block(self) -> BlockHash | None:
        """In the queue: the first block that the sequence would compute; of two with the same one the second waits."""
        return None

    @property
    def takes_over(self) -> TakeOver | None:
        """Until it is restored: the live state that it continues without a copy. In the queue another sequence may
        still take it first; once admitted it is this one's."""
        return None

    def look(self) -> None:
        """In the queue, before each step is planned: find out where to resume and which sequence to follow. Cheap."""

    def prepare(self, *, ahead: bool = False) -> None:
        """The sequence is admitted, or will be soon (`ahead`): look once more, and fetch if there is room. Cheap;
        repeating it moves on, as `poll` does."""

    def poll(self) -> bool:
        """Move on, once prepared; True when `restore` may be called. Cheap, called once a step while not ready."""
        return True

    def restore(self, model: StateAccess) -> int:
        """Put the (open, empty) sequence at the furthest position that could be had; returns it."""
        return 0

    def fork(self, id: SequenceId, request_id: RequestId) -> "SequenceCache":
        """The cache of a sequence whose state was copied from this one's at its present position (restored, not
        decoded yet). Nothing is looked up again, and what it computes is captured separately."""
        reused = {"hot": self._position} if self._position else {}
        twin = SequenceCache(replace(self.explanation, reused=reused))
        twin._position = self._position
        return twin

    def prefilled(self, model: StateAccess, position: int) -> None:
        """A chunk up to `position` has been computed."""
        self._position = position

    def decoded(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        """A token was decoded; `output_ids` are all so far."""

    def end(self, model: StateAccess, output_ids: Sequence[int]) -> bool:
        """The sequence finished or was cancelled; its state is still open. Keeps what there is of it. True when the
        model's sequence ended with it, and need not be closed."""
        return False

    def suspend(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        """The sequence is about to lose its state and will continue later: keep all that resuming here takes. It may
        still decode before it is abandoned; a new cache begins then."""

    def abandon(self) -> None:
        """The sequence failed, or never had a state. Idempotent, also after `end`."""
