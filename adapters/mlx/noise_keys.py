"""The random keys of a lane's rows, many steps at a time: the noise of token `i` is a function of (seed, i) alone."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.arrays import from_numpy

STEPS_AHEAD = 32
_MASK64 = 2**64 - 1
_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""As SplitMix64 mixes a state; the state is `seed` strides and the token's place."""


def noise_keys(seeds: Sequence[int], indices: Sequence[int], num_steps: int = 1) -> NDArray[np.uint32]:
    """[steps, rows, 2]: the MLX random key of each row's token `indices[row] + step` under its seed, a 64-bit mix of
    both, as two 32-bit words."""
    starts = np.array([seed & _MASK64 for seed in seeds], np.uint64) * _STRIDE
    tokens = np.arange(1, num_steps + 1, dtype=np.uint64)[:, None] + np.array(indices, np.uint64)
    mixed = starts + tokens
    for shift, factor in _MIXING:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.stack([mixed >> np.uint64(32), mixed & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)


class NoiseKeys:
    """Of a fixed list of rows, from `indices` on. Compute thread only."""

    def __init__(self, seeds: Sequence[int], indices: Sequence[int]) -> None:
        self._seeds = tuple(seeds)
        self._indices = tuple(indices)
        self._begin = 0
        self._table: mx.array | None = None

    def at(self, step: int) -> mx.array:
        """uint32 [rows, 2], of the `step`th token from the first on."""
        if self._table is None or not 0 <= step - self._begin < STEPS_AHEAD:
            self._begin = step
            self._table = from_numpy(noise_keys(self._seeds, [index + step for index in self._indices], STEPS_AHEAD))
        return self._table[step - self._begin]


__all__ = ("STEPS_AHEAD", "NoiseKeys", "noise_keys")
