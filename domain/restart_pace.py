"""How long to wait before something that ended is started again: at once, and ever longer while it keeps ending.

lived CALM_S or longer ──► 0 s
ended sooner, n times in a row ──► 1, 2, 4, ... s, MAX_DELAY_S at most
"""

CALM_S = 60.0
MAX_DELAY_S = 30.0


class RestartPace:
    """`next_delay_s` once after each end."""

    def __init__(self) -> None:
        self._num_in_a_row = 0

    def next_delay_s(self, lived_s: float) -> float:
        """`lived_s`: how long the one that has just ended was there."""
        if lived_s >= CALM_S:
            self._num_in_a_row = 0
        delay_s = min(MAX_DELAY_S, 2.0 ** (self._num_in_a_row - 1)) if self._num_in_a_row else 0.0
        self._num_in_a_row += 1
        return delay_s


__all__ = ("CALM_S", "MAX_DELAY_S", "RestartPace")
