"""What the engine sees of the prefix cache: one of these for each sequence, from submission to its end.

    begin ──► look ──► prepare ──► poll, until ready ──► restore ──► prefilled, decoded, ... ──► end | abandon
    (hashing) (in the queue)       (fetching)                             │              └► suspend, abandon
                                                                          └► fork, for a further choice

Compute thread only.
"""

from collections.abc import Sequence
from typing import Protocol

from application.ports.state_access import StateAccess
from domain.ids import BlockHash, RequestId, SequenceId
from domain.prefix.explanation import Explanation, StopReason
from domain.scheduling.step_values import TakeOver


class SequenceCache(Protocol):
    """See the module docstring."""

    @property
    def stops(self) -> tuple[int, ...]:
        """Positions at which prefill must pause, ascending; may grow while prefilling."""
        ...

    @property
    def is_looked_up(self) -> bool:
        """Whether it is known what the sequence starts from; meanwhile it may still be fetched."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Admitted, and its prefix waits for room in memory."""
        ...

    @property
    def follows(self) -> SequenceId | None:
        """In the queue: the running sequence that computes more of this prompt than there is yet."""
        ...

    @property
    def next_block(self) -> BlockHash | None:
        """In the queue: the first block that it would compute; of two with the same one the second waits."""
        ...

    @property
    def takes_over(self) -> TakeOver | None:
        """Until it is restored: the state that it goes on from without a copy. Its own once it is admitted; before, it
        is gone when somebody else takes it."""
        ...

    @property
    def explanation(self) -> Explanation:
        """What was reused and why no more; final once restored."""
        ...

    def look(self) -> None:
        """In the queue, before each step is planned: find out what to start from and whom it follows. Cheap."""
        ...

    def prepare(self, *, ahead: bool = False) -> None:
        """The sequence is admitted, or will be soon (`ahead`): look once more, and fetch, if there is room. Cheap;
        repeating it moves on, as `poll` does."""
        ...

    def poll(self) -> bool:
        """Move on, once prepared; True when `restore` may be called. Cheap, called once a step while not ready."""
        ...

    def restore(self, model: StateAccess) -> int:
        """Put the (open, empty) sequence at the furthest position that could be had; returns it."""
        ...

    def fork(self, id: SequenceId, request_id: RequestId) -> "SequenceCache":
        """For a sequence whose state was copied from this one's at its present position (restored, not decoded yet):
        nothing is looked up again, and what it computes is captured by itself."""
        ...

    def prefilled(self, model: StateAccess, position: int) -> None:
        """A chunk up to `position` has been computed."""
        ...

    def decoded(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        """A token was decoded; `output_ids` are all so far."""
        ...

    def end(self, model: StateAccess, output_ids: Sequence[int]) -> bool:
        """The sequence finished or was cancelled; its state is still open. Keeps what there is of it. True when the
        model's sequence ended with it, and need not be closed."""
        ...

    def suspend(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        """The sequence is about to lose its state, and will go on: keep all that resuming here takes. It may still
        decode before it is abandoned; a new one begins then."""
        ...

    def abandon(self) -> None:
        """The sequence failed, or never had a state. Idempotent, also after `end`."""
        ...


class UncachedSequence:
    """A SequenceCache that reuses nothing and keeps nothing: the layout is unsupported, or reuse is off."""

    stops: tuple[int, ...] = ()
    is_looked_up = True
    is_waiting = False
    follows: SequenceId | None = None
    next_block: BlockHash | None = None
    takes_over: TakeOver | None = None

    def __init__(self, num_prompt: int, reason: StopReason, note: str = "", num_reused: int = 0) -> None:
        """`num_reused`: tokens that another choice of the same prompt has computed."""
        self.explanation = Explanation(num_prompt, reason, {"hot": num_reused} if num_reused else {}, note=note)
        self._position = num_reused

    def look(self) -> None:
        pass

    def prepare(self, *, ahead: bool = False) -> None:
        pass

    def poll(self) -> bool:
        return True

    def restore(self, model: StateAccess) -> int:
        return 0

    def fork(self, id: SequenceId, request_id: RequestId) -> "UncachedSequence":
        told = self.explanation
        return UncachedSequence(told.num_prompt, told.reason, told.note, self._position)

    def prefilled(self, model: StateAccess, position: int) -> None:
        self._position = position

    def decoded(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        pass

    def end(self, model: StateAccess, output_ids: Sequence[int]) -> bool:
        return False

    def suspend(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        pass

    def abandon(self) -> None:
        pass
