"""What a benchmark may spend of a server's time and tokens. It is asked before every request, never after."""

from collections.abc import Callable


class Spent(Exception):
    """Nothing more may be asked; the message says what is used up."""


class Allowance:
    """Tokens are taken as they are estimated, and corrected by what the server told."""

    def __init__(self, max_tokens: int, max_time_s: float, now_s: Callable[[], float]) -> None:
        self._max_tokens = max_tokens
        self._now_s = now_s
        self._max_time_s = max_time_s
        self._deadline_s = now_s() + max_time_s
        self.num_tokens = 0

    @property
    def left_s(self) -> float:
        return self._deadline_s - self._now_s()

    def take(self, num_tokens: int) -> None:
        """So many are about to be asked for. Raises Spent."""
        if self.left_s <= 0:
            raise Spent(f"--max-time of {self._max_time_s:g} s is used up")
        if self.num_tokens + num_tokens > self._max_tokens:
            raise Spent(f"--max-tokens of {self._max_tokens:,} is used up")
        self.num_tokens += num_tokens

    def correct(self, more: int) -> None:
        """By how many more (or, negative, fewer) there were than were taken."""
        self.num_tokens += more
