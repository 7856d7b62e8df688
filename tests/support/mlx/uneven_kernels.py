"""Kernels that round by shape, played on a CPU: what a projection gives depends on how many rows it computes at once.

GPUs do so, each in its own way. With `UNEVEN_KERNELS=1` every projection of every network of this process does, by what
bfloat16 rounds. A test that fails then rests on equal numbers from passes of different shapes: it carries the marker
`exact`, which the workflow for macOS reports and does not require. `.ci/run` holds the others to it.
"""

import mlx.core as mx
import mlx.nn as nn

NOISE = 0.002
"""The share of a projection's mean size: the relative step of bfloat16, rounded to the nearest."""


def play_uneven_kernels() -> None:
    """Projections of this process are uneven from now on."""
    even = nn.Linear.__call__

    def uneven(self: nn.Linear, x: mx.array) -> mx.array:
        out = even(self, x)
        key = mx.random.key(hash(x.shape[:-1]) & 0xFFFF)
        noise = mx.random.normal(out.shape[-1:], key=key) * mx.mean(mx.abs(out), axis=-1, keepdims=True)
        return out + (NOISE * noise).astype(out.dtype)

    nn.Linear.__call__ = uneven
