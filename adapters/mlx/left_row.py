"""The state that a sequence left when it ended: plain caches that nobody computes on until another takes them over."""

from dataclasses import dataclass
from typing import Any

from adapters.mlx.arrays import evaluate_soon
from adapters.mlx.batch import Row
from adapters.mlx.caches.layout import Caches, live_arrays, new_caches
from adapters.mlx.caches.rows import cut_row, first_position
from application.ports.state_access import LeftState


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

    def at(self, position: int, network: Any) -> Caches:
        """The caches at `position`; this row is not to be used afterwards. Raises ValueError where they cannot be."""
        return cut_row(self.caches, new_caches(network), self.num_tokens, position)


__all__ = ("LeftRow",)
