"""Prompts as the engine takes them, and the grid by which they are cut for hashing, prefill and resuming.

    tokens   0        256       512       768      1024
    blocks   |────────|─────────|─────────|─────────|     unit of hashing and storing
    steps    |──────────────────|───────────────────|     unit of prefill: chunks begin at multiples of `step`

A state computed in whole steps from the start has the same bits every time. A state that is resumed elsewhere continues
with a chunk of another shape, and then equals recomputing only up to rounding.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from domain.id_row import IdRow


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """Settings, in tokens; `step` is a multiple of `block_size`. `is_exact`: resume at multiples of `step` only, where
    what follows is bit-identical to recomputing."""

    block_size: int
    step: int
    is_exact: bool = False

    def split(self, position: int) -> tuple[int, int]:
        """Returns the number of full blocks before `position`, and of tokens after them."""
        return divmod(position, self.block_size)

    def is_resumable(self, position: int) -> bool:
        return not self.is_exact or position % self.step == 0

    def last_resumable(self, position: int) -> int:
        """Returns the last resumable position at or before `position`."""
        return position // self.step * self.step if self.is_exact else position

    def furthest(self, num_prompt: int) -> int:
        """Returns the position at which a prompt resumes when everything is kept. Its last token is always computed."""
        return self.last_resumable(num_prompt - 1)


class ForkKind(Enum):
    """The reason for which a later request is likely to branch off here; earlier members matter more."""

    NEXT_TURN = "next_turn"
    MORE_SAID = "more_said"
    """Just before the answer, where the last message may be continued."""
    SYSTEM_END = "system_end"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A token position in a rendered prompt (0 < position <= its length)."""

    position: int
    kind: ForkKind


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt ready for the engine, and the fork points found in it, ascending, one a position."""

    token_ids: IdRow
    fork_points: tuple[ForkPoint, ...] = ()

    @classmethod
    def of_text(cls, token_ids: Iterable[int], fork_points: Sequence[ForkPoint] = ()) -> "EncodedPrompt":
        """Raises ValueError for values that are no token ids: see `IdRow`."""
        return cls(IdRow(token_ids), tuple(fork_points))

    def followed_by(self, token_ids: Iterable[int]) -> "EncodedPrompt":
        """Returns the prompt with more tokens appended."""
        return EncodedPrompt(self.token_ids.followed_by(token_ids), self.fork_points)
