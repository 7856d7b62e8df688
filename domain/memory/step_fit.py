"""From a few estimated peaks to the plane through them, and the most that any of them is."""

from collections.abc import Mapping
from typing import TypeAlias

from domain.memory.shape import StepCost

BLOCK = 256

Pair: TypeAlias = tuple[int, int]


def fit_points(chunks: Pair, ends: Pair) -> list[tuple[int, int]]:
    """What the plane is made from: (chunk, end) of the four corners, and of the first chunk of a prompt, be it short or
    about half as long: state space models grow with the square of a chunk up to BLOCK tokens. Each once.

    Both pairs ascend; equal ends mean that nothing is known of the growth with position.
    """
    few, many = chunks
    middle = max(few, (few + many) // 2 // BLOCK * BLOCK)
    corners = [(chunk, end) for chunk in chunks for end in ends]
    return list(dict.fromkeys([*corners, (few, few), (middle, middle)]))


def fit_step(peaks: Mapping[tuple[int, int], int], chunks: Pair, ends: Pair) -> StepCost:
    """The plane through the corners, lifted so that it is nowhere under the peaks, which are those of `fit_points`, and
    between them nowhere over the highest. No part of it is negative."""
    (few, many), (near, far) = chunks, ends
    reach, width = max(far - near, 1), max(many - few, 1)
    slopes = {chunk: (peaks[chunk, far] - peaks[chunk, near]) / reach for chunk in chunks}
    pair = max(0, _ceil((slopes[many] - slopes[few]) / width))
    seen = max(0, _ceil(slopes[many] - pair * many))
    token = max(0, _ceil((peaks[many, near] - peaks[few, near]) / width - pair * near))
    plane = StepCost(token_bytes=token, seen_bytes=seen, pair_bytes=pair)
    base = max(peak - plane.bytes_at(chunk, end) for (chunk, end), peak in peaks.items())
    return StepCost(
        base_bytes=max(0, base),
        token_bytes=token,
        seen_bytes=seen,
        pair_bytes=pair,
        most_bytes=max(peaks.values()),
        most_chunk=many,
        most_end=far,
    )


def _ceil(value: float) -> int:
    return -int(-value // 1)


__all__ = ("BLOCK", "fit_points", "fit_step")
