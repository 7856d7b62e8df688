"""A tier from which a fetch reads records: the store, or what the shared tier answered for one prompt."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from application.services.lane import Call
from domain.prefix.index import RecordNeed
from domain.prefix.record import Record

Arrived: TypeAlias = tuple[Sequence[Record | None], Sequence[Record | None]]
"""Records, None for each that is missing, and the same as they arrived, for the store; empty where it has them."""


class RecordSource(Protocol):
    """Compute thread only; the reads are made by workers. `name`: of the tier."""

    @property
    def name(self) -> str: ...

    def begin_reads(
        self, needs: Sequence[RecordNeed], on_done: Callable[[], None], reader: object
    ) -> Iterable[tuple[slice, Call[Arrived] | None]]:
        """Begins to read records, and returns the needs that each read is for; None: it was refused. `reader`: all
        reads of one belong together."""
        ...

    def is_overdue(self, began_ns: int, num_arrived: int) -> bool:
        """Returns whether reads that were begun then are waited for no longer. `num_arrived`: tokens of which the state
        has arrived."""
        ...

    def note_late(self, began_ns: int, num_records: int) -> None:
        """Notes the number of records that were not waited for any longer."""
        ...
