"""Where a sequence's masks are made: by whoever asks for them while they are cheap, by a worker after one was dear.

Following a token and making the next mask takes some five microseconds, handing it to a worker and waiting for that
fifty to two hundred and the interpreter's lock twice. So who asks does it, as long as the last ones were cheap.

    dear ones that held up who asked     none   1   2    3    n
    cheap ones in a row before the next  1      4   16   64   4^n

A grammar may turn dear at any token. What one mask may cost is bounded by the library's limits (`library.LIMITS`,
some 20 ms), so a hostile grammar holds up who asks by that once, then once in 4 tokens, in 16, in 64: ten times in a
million.
"""

DEAR_S = 0.002
"""One mask. Of a processor, not of a clock: a machine that is busy makes no grammar dear. Two in a hundred of ordinary
ones take up to a millisecond, where the library comes to a state of its lexer for the first time."""

CHEAP_S = 0.000_1
"""A mask on average. What handing over takes: where masks take longer, they are made while a step is queued."""

_GROWTH = 4
_WEIGHT = 1 / 16


class MaskPace:
    """One sequence's. `is_cheap`: whether the next mask may be made by who asks for it."""

    __slots__ = ("_average_s", "_num_proved", "_num_wanted", "is_cheap")

    def __init__(self) -> None:
        self.is_cheap = False
        self._average_s = 0.0
        self._num_proved = 0
        self._num_wanted = 1

    def record(self, cpu_s: float) -> None:
        """What following a token and making a mask took the processor, wherever it was done."""
        if cpu_s > DEAR_S:
            self._num_proved = -1
            self._num_wanted *= _GROWTH if self.is_cheap else 1
            cpu_s = DEAR_S
        self._num_proved += 1
        self._average_s += _WEIGHT * (cpu_s - self._average_s)
        self.is_cheap = self._num_proved >= self._num_wanted and self._average_s <= CHEAP_S


__all__ = ("CHEAP_S", "DEAR_S", "MaskPace")
