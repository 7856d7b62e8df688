"""States that sequences left when they ended: plain caches that nobody computes on until another takes them over."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from adapters.mlx.arrays import evaluate_soon
from adapters.mlx.batch import Row
from adapters.mlx.caches.layout import Caches, live_arrays
from adapters.mlx.caches.rows import cut_row, first_position
from application.ports.state_access import LeftState
from domain.errors import ComputeFailed
from domain.ids import SequenceId

_logger = logging.getLogger("cairn.mlx")


@dataclass(frozen=True, slots=True)
class LeftRow:
    """`caches`: covering `num_tokens` tokens."""

    caches: Caches
    num_tokens: int

    @classmethod
    def of(cls, row: Row, *, may_copy: bool) -> "LeftRow | None":
        """What a row leaves that ends; it is in no group afterwards."""
        if row.failure is not None or not row.position:
            return None
        caches = row.caches if row.group is None else row.group.part(row, may_copy=may_copy)
        if not caches:
            return None
        # A recurrent state may still be a graph, which holds what it is to be computed from.
        evaluate_soon(live_arrays(caches))
        return cls(caches, row.position)

    def described(self) -> LeftState:
        size_bytes = sum(array.nbytes for array in live_arrays(self.caches))
        return LeftState(self.num_tokens, first_position(self.caches, self.num_tokens), size_bytes)


class LeftRows:
    """Those of one model. Compute thread only."""

    def __init__(self) -> None:
        self._rows: dict[SequenceId, LeftRow] = {}

    def ids(self) -> frozenset[SequenceId]:
        return frozenset(self._rows)

    def keep(self, row: Row, *, may_copy: bool) -> LeftState | None:
        """What a row leaves that ends. None where that is nothing, or it could not be had."""
        try:
            left = LeftRow.of(row, may_copy=may_copy)
            found = left.described() if left is not None else None
        except Exception as error:
            _logger.warning("the state of sequence %s could not be left: %s", row.id, error)
            return None
        if left is not None:
            self._rows[row.id] = left
        return found

    def take(self, id: SequenceId, position: int) -> Caches:
        """Out of here, at `position`. Raises ComputeFailed where it cannot be brought there; it is gone then, too."""
        left = self._rows.pop(id)
        try:
            cut_row(left.caches, left.num_tokens, position)
        except Exception as error:
            raise ComputeFailed(f"cannot take over a state at position {position}: {error}") from error
        return left.caches

    def drop(self, ids: Sequence[SequenceId]) -> bool:
        """Whether any of them was here."""
        return sum(self._rows.pop(id, None) is not None for id in ids) > 0

    def clear(self) -> None:
        self._rows.clear()


__all__ = ("LeftRow", "LeftRows")
