"""How often a sequence was preempted, and whether there is hope that it ever ends.

Who is preempted beside others goes on once they have ended. Who is preempted alone, again and again, and gets no
further in between, is too large for the memory there is.
"""

from dataclasses import dataclass

MAX_ALONE = 3
"""Preemptions in a row with nobody else there, each within MIN_PROGRESS of the first, that are borne."""

MIN_PROGRESS = 256
"""Tokens."""


@dataclass(slots=True)
class Preemptions:
    """`count`: all of them."""

    count: int = 0
    _num_alone: int = 0
    _position: int = 0

    def add(self, position: int, *, is_alone: bool) -> bool:
        """One more, with so many tokens computed. False when it is hopeless."""
        self.count += 1
        if not is_alone or position >= self._position + MIN_PROGRESS:
            self._num_alone, self._position = 0, position
        self._num_alone += is_alone
        return self._num_alone <= MAX_ALONE
