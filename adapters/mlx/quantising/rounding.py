"""Matrices to fewer bits and back: as MLX does it, or with ranges that lose less.

MLX's affine form spans each group from its least to its largest value. A narrower range cuts a few values and rounds
all others more finely: of SHARES, each group gets the one with the least squared error, which MLX then quantises as it
stands.
"""

from typing import Any, cast

import mlx.core as mx

from domain.models.quantisation import Quantisation

SHARES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7)
"""At 4 bits they save 9 % of the squared error of SmolLM2's matrices, at 3 bits 14 %, at 2 bits 20 %."""

_mx: Any = mx


def quantised(weight: mx.array, form: Quantisation, *, fits: bool = False) -> list[mx.array]:
    """Returns weight, scales, and biases where the form has them, along the last axis. `fits`: with fitted ranges."""
    source = fitted(weight, form) if fits else weight
    return list(_mx.quantize(source, form.group, form.bits, mode=form.mode))


def dequantised(weight: mx.array, form: Quantisation, *, fits: bool = False) -> mx.array:
    """Returns a matrix with the values that it has once it is quantised."""
    return expanded(quantised(weight, form, fits=fits), form)


def expanded(parts: list[mx.array], form: Quantisation) -> mx.array:
    """Returns the matrix of quantised parts."""
    return cast(mx.array, _mx.dequantize(*parts, group_size=form.group, bits=form.bits, mode=form.mode))


def fitted(weight: mx.array, form: Quantisation) -> mx.array:
    """Returns the matrix with each group cut to its best range."""
    groups = mx.reshape(weight, (-1, form.group))
    low, high = mx.min(groups, axis=1, keepdims=True), mx.max(groups, axis=1, keepdims=True)
    best, least = groups, mx.full(low.shape, float("inf"), dtype=mx.float32)
    for share in SHARES:
        cut = mx.clip(groups, share * low, share * high)
        back = dequantised(cut, form)
        error = mx.sum(mx.square((back - groups).astype(mx.float32)), axis=1, keepdims=True)
        best, least = mx.where(error < least, cut, best), mx.minimum(error, least)
    return mx.reshape(best, weight.shape)
