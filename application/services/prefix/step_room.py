"""The room of one step: what may begin in it below the hard mark, for all who take some of it.

Reads that begin, copies of rows that leave their batch, and forks: whoever comes first has it, so that what each was
allowed fits with what all others were. What was promised to those who are admitted in the step is held in later ones,
for which room is counted anew: so reads may begin in it, and what holds its bytes at once may not. Opened before each
step is planned; what is left stands until the next one. Compute thread only.
"""


class StepRoom:
    """`num_bytes`: negative when more is promised than there is; None: not bounded. `num_opened`: how often."""

    def __init__(self) -> None:
        self.num_bytes: int | None = None
        self.num_opened = self._promised_bytes = 0

    def open(self, num_bytes: int | None) -> None:
        self.num_bytes, self.num_opened, self._promised_bytes = num_bytes, self.num_opened + 1, 0

    def promise(self, num_bytes: int) -> None:
        """To those who are admitted."""
        self._promised_bytes += num_bytes

    def has(self, num_bytes: int) -> bool:
        return self.num_bytes is None or num_bytes <= self.num_bytes

    def has_at_once(self, num_bytes: int) -> bool:
        return self.has(num_bytes + self._promised_bytes)

    def take(self, num_bytes: int) -> None:
        """Whether or not there is so much."""
        if self.num_bytes is not None:
            self.num_bytes -= num_bytes


__all__ = ("StepRoom",)
