"""When the tokens of a constrained step are read: after its forward pass is queued, or before.

    late     build, queue, read, accept, masks      the device computes while masks are made; nothing may wait for it
    early    build, read, accept, queue, masks      queueing lets go of the interpreter, and masks are made meanwhile

Where computing takes longer than queueing, late is right: early would leave the device with nothing to do. Where
queueing takes longer (a fast GPU with a model of many small operations), late computes masks while both wait. Which it
is depends on model, device and batch, so both are tried and the quicker is kept for a while. Tokens are the same.
"""

import statistics

NUM_TRIED = 8
"""Steps in each order, from which the quicker one is told."""
NUM_KEPT = 512
"""Steps until both are tried again: what is lost by trying stays under a hundredth, also where one takes half as long
again."""


class ReadingOrder:
    """Of one decode group. `is_early`: how to read the tokens of the step that comes."""

    __slots__ = ("_num_kept", "_taken", "is_early")

    def __init__(self) -> None:
        self.is_early = False
        self._num_kept = 0
        self._taken: dict[bool, list[float]] = {False: [], True: []}

    def record(self, step_s: float) -> None:
        """How long a step took, from the end of the one before."""
        if self._num_kept:
            self._num_kept -= 1
            return
        self._taken[self.is_early].append(step_s)
        if len(self._taken[self.is_early]) < NUM_TRIED:
            return
        if len(self._taken[not self.is_early]) < NUM_TRIED:
            self.is_early = not self.is_early
            return
        self.is_early = statistics.median(self._taken[True]) < statistics.median(self._taken[False])
        self._taken = {False: [], True: []}
        self._num_kept = NUM_KEPT


__all__ = ("ReadingOrder",)
