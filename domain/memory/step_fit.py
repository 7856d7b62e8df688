"""From a few estimated peaks to the plane through them."""

from collections.abc import Callable

from domain.memory.shape import StepCost

BLOCK = 256


def fit_step(peak_bytes: Callable[[int, int], int], chunks: tuple[int, int], ends: tuple[int, int]) -> StepCost:
    """The plane through the four corners, lifted so that it is nowhere under `peak_bytes(chunk, end)` there and at the
    first chunk of a prompt, be it short or about half as long: state space models grow with the square of a chunk up
    to BLOCK tokens. No part of the plane is negative.

    Both pairs ascend; equal ends mean that nothing is known of the growth with position.
    """
    (few, many), (near, far) = chunks, ends
    middle = max(few, (few + many) // 2 // BLOCK * BLOCK)
    points = [*((chunk, end) for chunk in chunks for end in ends), (few, few), (middle, middle)]
    peaks = {(chunk, end): peak_bytes(chunk, end) for chunk, end in dict.fromkeys(points)}
    reach, width = max(far - near, 1), max(many - few, 1)
    slopes = {chunk: (peaks[chunk, far] - peaks[chunk, near]) / reach for chunk in chunks}
    pair = max(0, _ceil((slopes[many] - slopes[few]) / width))
    seen = max(0, _ceil(slopes[many] - pair * many))
    token = max(0, _ceil((peaks[many, near] - peaks[few, near]) / width - pair * near))
    plane = StepCost(token_bytes=token, seen_bytes=seen, pair_bytes=pair)
    base = max(peak - plane.bytes_at(chunk, end) for (chunk, end), peak in peaks.items())
    return StepCost(base_bytes=max(0, base), token_bytes=token, seen_bytes=seen, pair_bytes=pair)


def _ceil(value: float) -> int:
    return -int(-value // 1)


__all__ = ("BLOCK", "fit_step")
