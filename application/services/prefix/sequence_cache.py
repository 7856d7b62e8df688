"""What the engine sees of the prefix cache: one of these for each sequence, from submission to its end.

The engine calls `prepare`, polls until `poll` says ready, calls `restore` once, then `prefilled` after each chunk,
`decoded` after each step and `end` (or `abandon`) at the end. Compute thread only.
"""

from collections.abc import Sequence
from typing import Protocol

from application.ports.compute import LoadedModel
from domain.explanation import Explanation
from domain.ids import RequestId, SequenceId


class SequenceCache(Protocol):
    """See the module docstring."""

    @property
    def stops(self) -> tuple[int, ...]:
        """Positions at which prefill must pause, ascending; may grow while prefilling."""
        ...

    @property
    def explanation(self) -> Explanation:
        """What was reused and why no more; final once restored."""
        ...

    def prepare(self) -> None:
        """The sequence is admitted or will be soon: fetch what there is of its prefix. Idempotent."""
        ...

    def poll(self) -> bool:
        """Move on; True when `restore` may be called. Cheap, called once a step while not ready."""
        ...

    def restore(self, model: LoadedModel) -> int:
        """Put the (open, empty) sequence at the furthest position that could be had; returns it."""
        ...

    def fork(self, id: SequenceId, request_id: RequestId) -> "SequenceCache":
        """Another choice of the same prompt, whose sequence was forked from this one, which prefills, where it is now.
        It is restored already."""
        ...

    def prefilled(self, model: LoadedModel, position: int) -> None:
        """A chunk up to `position` has been computed."""
        ...

    def decoded(self, model: LoadedModel, output_ids: Sequence[int]) -> None:
        """A token was decoded; `output_ids` are all so far."""
        ...

    def end(self, model: LoadedModel, output_ids: Sequence[int]) -> None:
        """The sequence finished or was cancelled; its state is still open. Keeps what there is of it."""
        ...

    def abandon(self) -> None:
        """The sequence failed, or never had a state. Idempotent, also after `end`."""
        ...


__all__ = ("SequenceCache",)
