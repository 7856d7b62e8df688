"""A prompt as the engine takes it: token ids, and where a later prompt is likely to branch off."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from domain.id_row import IdRow
from domain.prefix.fork_point import ForkPoint


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt ready for the engine, and the fork points found in it, ascending, one a position."""

    token_ids: IdRow
    fork_points: tuple[ForkPoint, ...] = ()

    @classmethod
    def of_text(cls, token_ids: Iterable[int], fork_points: Sequence[ForkPoint] = ()) -> "EncodedPrompt":
        """Raises ValueError for what is no token id: see `IdRow`."""
        return cls(IdRow(token_ids), tuple(fork_points))

    def followed_by(self, token_ids: Iterable[int]) -> "EncodedPrompt":
        """The same prompt with more tokens behind it."""
        return EncodedPrompt(self.token_ids.followed_by(token_ids), self.fork_points)
