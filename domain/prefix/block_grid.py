"""How a prompt is cut, and at which positions it may be resumed: the one value behind hashing, lookup and snapshots.

    tokens   0        256       512       768      1024
    blocks   |────────|─────────|─────────|─────────|     unit of hashing and storing
    steps    |──────────────────|───────────────────|     unit of prefill: chunks begin at multiples of `step`

A state computed in whole steps from the start has the same bits every time. One that is resumed elsewhere goes on with
a chunk of another shape, and is then equal to recomputing up to rounding.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """Settings, in tokens; `step` is a multiple of `block_size`. `is_exact`: resume at multiples of `step` only, where
    what follows is bit-identical to recomputing."""

    block_size: int
    step: int
    is_exact: bool = False

    def split(self, position: int) -> tuple[int, int]:
        """Full blocks before `position`, and the tokens after them."""
        return divmod(position, self.block_size)

    def is_resumable(self, position: int) -> bool:
        return not self.is_exact or position % self.step == 0

    def last_resumable(self, position: int) -> int:
        """The last resumable position at or before `position`."""
        return position // self.step * self.step if self.is_exact else position

    def furthest(self, num_prompt: int) -> int:
        """Where a prompt is resumed when everything is there. Its last token is always computed, for its logits."""
        return self.last_resumable(num_prompt - 1)
