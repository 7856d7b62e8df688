"""Prefill chunks on their way through the device, so that it computes one while the host prepares the next.

Waiting for every chunk before the next one is built costs a fast GPU a tenth of its prefill rate. With `depth` 1 a
chunk is only waited for when the next one has been queued, so that at most two are under way; with 0 it is waited for
at once. What a chunk computes is the same either way: MLX never changes an array that is still in use.
"""

from collections import deque
from collections.abc import Sequence

import mlx.core as mx

from adapters.mlx.runtime.arrays import evaluate, evaluate_soon


class ChunkQueue:
    """Compute thread only."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._marks: deque[mx.array] = deque()

    def put(self, state: Sequence[mx.array]) -> None:
        """Compute a chunk's state. Errors may be those of the chunk before."""
        if not self._depth or not state:
            evaluate(state)
            return
        mark = _mark(state[-1])
        evaluate_soon([*state, mark])
        self._marks.append(mark)
        if len(self._marks) > self._depth:
            evaluate([self._marks.popleft()])

    def finish(self) -> None:
        """Wait for every chunk."""
        evaluate(self._marks)
        self._marks.clear()

    def drop(self) -> None:
        """Wait for nothing any more."""
        self._marks.clear()


def _mark(array: mx.array) -> mx.array:
    """A number that is known when the array is, without its memory: holding that would make the next update copy it."""
    return mx.sum(array[(slice(0, 1),) * array.ndim])
