"""When the tokens of a constrained step are read, relative to its forward pass and to the choice of the next ones.

    late      build, queue, read, accept, masks, queue     the device computes meanwhile
    early     build, read, accept, queue, masks, queue     masks are made while the pass is queued
    at once   build, read, accept, masks, queue            the pass and the choice are queued together

Queueing lets go of the interpreter and takes its time. Where computing takes longer than queueing, late is right: with
the others the device would have nothing to do. Where queueing takes longer (a fast GPU with a model of many small
operations), early hides what masks cost, and at once does without queueing twice. Which it is depends on model, device,
batch and grammars, so all are tried in turns, and another than late is kept for a while where it is clearly quicker:
steps of one order differ among themselves by more than the orders do on most machines. Tokens are the same.
"""

import math
import statistics
from enum import Enum

NUM_TRIED = 6
"""Steps in a row in one order. The first of them is partly the order before, and is not counted."""
NUM_ROUNDS = 2
"""How often each has its turn."""
NUM_KEPT = 1_000
"""Steps until all are tried again: trying costs under a hundredth, also where one takes half as long again."""

CLEARLY = 0.9
"""What a step may take of a late one's time, where another order is kept."""


class Reading(Enum):
    LATE = "late"
    EARLY = "early"
    AT_ONCE = "at once"


_TURNS = tuple(Reading) * NUM_ROUNDS
NUM_IN_TRIAL = len(_TURNS) * NUM_TRIED


class ReadingOrder:
    """Of one model: most answers are too short to try it for each. `reading`: how to read the tokens of the step that
    comes. The first turn of all is not counted either: kernels are compiled in it."""

    __slots__ = ("_num_seen", "_taken", "reading")

    def __init__(self) -> None:
        self.reading = Reading.LATE
        self._num_seen = -NUM_TRIED
        self._taken: dict[Reading, list[float]] = {reading: [] for reading in Reading}

    def record(self, reading: Reading, step_s: float) -> None:
        """How long a step that was read so took, from the end of the group's step before."""
        turn, place = divmod(self._num_seen, NUM_TRIED)
        self._num_seen += 1
        if 0 <= turn < len(_TURNS) and place:
            self._taken[reading].append(step_s)
        if self._num_seen < NUM_IN_TRIAL:
            self.reading = _TURNS[max(0, self._num_seen // NUM_TRIED)]
        elif self._num_seen == NUM_IN_TRIAL:
            quickest = min(Reading, key=self._typical_s)
            is_clear = self._typical_s(quickest) <= CLEARLY * self._typical_s(Reading.LATE)
            self.reading = quickest if is_clear else Reading.LATE
        elif self._num_seen == NUM_IN_TRIAL + NUM_KEPT:
            self._num_seen, self.reading = 0, _TURNS[0]
            self._taken = {reading: [] for reading in Reading}

    def _typical_s(self, reading: Reading) -> float:
        """Endless for one that was not tried: the steps of many groups go through several turns at once."""
        taken = self._taken[reading]
        return statistics.median(taken) if taken else math.inf


__all__ = ("Reading", "ReadingOrder")
