"""When the tokens of a constrained step are read: after its forward pass is queued, or before.

    late     build, queue, read, accept, masks      the device computes while masks are made; nothing may wait for it
    early    build, read, accept, queue, masks      queueing lets go of the interpreter, and masks are made meanwhile

Where computing takes longer than queueing, late is right: early would leave the device with nothing to do. Where
queueing takes longer (a fast GPU with a model of many small operations), late computes masks while both wait. Which it
is depends on model, device and batch, so both are tried and the quicker is kept for a while. Tokens are the same.
"""

import statistics

NUM_TRIED = 6
"""Steps in a row in one order, each order twice in turns. The first of them is in neither, and is not counted."""
NUM_TURNS = 4
NUM_KEPT = 1_000
"""Steps until both are tried again: what is lost by trying stays under a hundredth, also where one takes half as long
again."""


class ReadingOrder:
    """Of one decode group. `is_early`: how to read the tokens of the step that comes. The first turn of all is not
    counted either: kernels are compiled in it, and rows join."""

    __slots__ = ("_num_seen", "_taken", "is_early")

    def __init__(self) -> None:
        self.is_early = False
        self._num_seen = -NUM_TRIED
        self._taken: dict[bool, list[float]] = {False: [], True: []}

    def record(self, step_s: float) -> None:
        """How long a step took, from the end of the one before."""
        turn, place = divmod(self._num_seen, NUM_TRIED)
        self._num_seen += 1
        if turn < 0:
            return
        if turn < NUM_TURNS:
            if place:
                self._taken[self.is_early].append(step_s)
            if place == NUM_TRIED - 1:
                self.is_early = not self.is_early
        if self._num_seen == NUM_TURNS * NUM_TRIED:
            late, early = (statistics.median(self._taken[is_early]) for is_early in (False, True))
            self.is_early = early < late
        elif self._num_seen >= NUM_TURNS * NUM_TRIED + NUM_KEPT:
            self._num_seen = 0
            self._taken = {False: [], True: []}


__all__ = ("ReadingOrder",)
