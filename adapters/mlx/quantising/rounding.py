"""Matrices to fewer bits and back: as MLX does it, or with ranges that lose less.

MLX's affine form spans each group from its least to its largest value. A narrower range cuts a few values and rounds
all others more finely: of SHARES, each group gets the one with the least error, which MLX then quantises as it stands.
An error counts by the mean square of the input that it is multiplied with, its *moment*: some inputs of a language
model are a hundred times as large as the rest. Without moments narrower ranges lose more than they save.
"""

from collections.abc import Iterator
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.runtime.arrays import evaluate
from domain.models.quantisation import Quantisation

PIECE_BYTES = 4 * 2**20
"""The bytes of a matrix that are cast and quantised at once."""

SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6)
"""With moments they lower the KL of SmolLM2-135M by 20 % at 4 bits; without, they raise it by 19 %."""

_mx: Any = mx


def quantised(weight: mx.array, form: Quantisation, moments: mx.array | None = None) -> list[mx.array]:
    """Returns weight, scales, and biases where the form has them, along the last axis. `moments`: float32 [length of a
    row], for fitted ranges; None for MLX's own."""
    source = weight if moments is None else fitted(weight, form, moments)
    return list(_mx.quantize(source, form.group, form.bits, mode=form.mode))


def dequantised(weight: mx.array, form: Quantisation, moments: mx.array | None = None) -> mx.array:
    """Returns a matrix with the values that it has once it is quantised."""
    return expanded(quantised(weight, form, moments), form)


def rounded(weight: mx.array, form: Quantisation, moments: mx.array | None) -> mx.array:
    """As `dequantised`, computed, in runs of rows: fitting holds each of them several times as wide."""
    runs: list[mx.array] = []
    for run in runs_of(weight):
        runs.append(dequantised(run, form, moments).astype(weight.dtype))
        evaluate(runs[-1:])
    return runs[0] if len(runs) == 1 else mx.concatenate(runs)


def runs_of(array: mx.array) -> Iterator[mx.array]:
    """Yields an array in parts of about PIECE_BYTES along its first axis, or whole where it has one axis only."""
    if array.ndim < 2 or array.nbytes <= PIECE_BYTES:
        yield array
        return
    num_rows = max(1, PIECE_BYTES * array.shape[0] // array.nbytes)
    for start in range(0, array.shape[0], num_rows):
        yield array[start : start + num_rows]


def expanded(parts: list[mx.array], form: Quantisation) -> mx.array:
    """Returns the matrix of quantised parts."""
    return cast(mx.array, _mx.dequantize(*parts, group_size=form.group, bits=form.bits, mode=form.mode))


def fitted(weight: mx.array, form: Quantisation, moments: mx.array) -> mx.array:
    """Returns the matrix with each group cut to its best range."""
    in_groups = (*weight.shape[:-1], weight.shape[-1] // form.group, form.group)

    def grouped(array: mx.array) -> mx.array:
        return mx.reshape(array, in_groups)

    groups = grouped(weight)
    low, high = mx.min(groups, axis=-1, keepdims=True), mx.max(groups, axis=-1, keepdims=True)
    best, least = groups, mx.full(low.shape, float("inf"), dtype=mx.float32)
    for share in SHARES:
        cut = mx.clip(groups, share * low, share * high)
        back = dequantised(mx.reshape(cut, weight.shape), form)
        squares = mx.square((back - weight).astype(mx.float32)) * moments
        error = mx.sum(grouped(squares), axis=-1, keepdims=True)
        best, least = mx.where(error < least, cut, best), mx.minimum(error, least)
    return mx.reshape(best, weight.shape)
