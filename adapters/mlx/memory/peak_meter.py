"""Peaks of prefill chunks as they are measured, by which the estimate of the next ones is corrected.

MLX counts one peak for the whole process. It is begun anew before a chunk and read after it; what is active by then is
no part of the chunk's own: the weights, the states, and whatever workers brought to the device meanwhile. A chunk that
is still under way when its call returns cannot be measured, so where chunks are queued ahead only some are: the first
ones, then each after twice as many, and in the end one in a while. Chunks shorter than the longest so far say nothing.
"""

from collections.abc import Callable, Mapping

import mlx.core as mx

from domain.memory.correction import PeakCorrection
from domain.memory.shape import MemoryShape

FIRST_CHUNKS, EVERY_CHUNKS = 4, 64
_KEPT_CHANGE = 0.02
"""The smallest change of a factor that is worth keeping."""

_highest_bytes = 0


def highest_bytes() -> int:
    """The most memory that was ever in use, however often the peak was begun anew. Any thread."""
    return max(_highest_bytes, mx.get_peak_memory())


def begin_peak() -> None:
    """Count the peak from now on. Compute thread only."""
    global _highest_bytes
    _highest_bytes = highest_bytes()
    mx.reset_peak_memory()


def peak_bytes() -> int:
    """The most that was in use since `begin_peak` beyond what is active now, once all that was queued is done."""
    return max(0, mx.get_peak_memory() - mx.get_active_memory())


class PeakMeter:
    """The peaks of one loaded model. Compute thread only."""

    def __init__(
        self,
        shape: MemoryShape,
        correction: PeakCorrection | None = None,
        keep: Callable[[PeakCorrection], None] = lambda _: None,
        *,
        is_ahead: bool = False,
    ) -> None:
        """`shape`: before any correction. `keep` is called with a correction that has changed. `is_ahead`: chunks may
        be under way when their call returns."""
        self._shape, self._keep, self._is_ahead = shape, keep, is_ahead
        self._correction = self._kept = correction or PeakCorrection()
        self._num_chunks = self._longest = 0

    @property
    def shape(self) -> MemoryShape:
        """With what was learnt so far."""
        return self._correction.applied(self._shape)

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever measured of this model."""
        return not self._correction.num_measured

    def loaded(self, chunk: int, peaks: Mapping[int, int]) -> None:
        """Take the peaks measured by a load: see `PeakCorrection.of_load`."""
        self._correction = self._kept = PeakCorrection.of_load(self._shape, chunk, peaks)
        self._longest = chunk
        self._keep(self._correction)

    def begin(self, chunk: int, finish: Callable[[], None]) -> bool:
        """Before a chunk of so many tokens: whether it is measured. `finish` waits for every chunk."""
        if chunk < self._longest:
            return False
        self._longest = chunk
        self._num_chunks += 1
        if self._is_ahead and not _is_measured(self._num_chunks):
            return False
        finish()
        begin_peak()
        return True

    def end(self, chunk: int, position: int, finish: Callable[[], None]) -> bool:
        """After a measured chunk of so many tokens up to `position`, its logits not among what was asked for. True
        when the shape is another one now."""
        finish()
        self._correction = now = self._correction.learnt(self._shape, chunk, position, peak_bytes())
        if max(abs(now.near - self._kept.near), abs(now.deep - self._kept.deep)) < _KEPT_CHANGE:
            return False
        self._kept = now
        self._keep(now)
        return True


def _is_measured(number: int) -> bool:
    """Whether the chunk of this number, counted from one, is measured where chunks are queued ahead."""
    is_power = not number & (number - 1)
    return number <= FIRST_CHUNKS or number % EVERY_CHUNKS == 0 or (is_power and number < EVERY_CHUNKS)
