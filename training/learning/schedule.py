"""The schedule of a run by its progress: row lengths, learning rate, exports. Progress runs from 0 to 1."""

from collections.abc import Sequence

ROW_LENGTHS = (256, 512, 1024, 2048, 4096)

_SHARES = (
    (0.12, (0.6, 0.4, 0.0, 0.0, 0.0)),
    (0.25, (0.2, 0.6, 0.2, 0.0, 0.0)),
    (0.50, (0.1, 0.3, 0.35, 0.25, 0.0)),
    (0.78, (0.1, 0.2, 0.2, 0.25, 0.25)),
    (float("inf"), (0.1, 0.2, 0.15, 0.2, 0.35)),
)
"""Until this progress: the share of tokens in rows of each length. Short rows first: they teach the tasks sooner."""

_WARMUP_STEPS = 150
_DECAY_FROM = 0.65

FIRST_EXPORT = 0.45
EXPORT_EVERY = 0.25


def row_shares(progress: float, num_lengths: int) -> Sequence[float]:
    """Share of tokens in rows of each of the first `num_lengths` lengths."""
    return next(shares for until, shares in _SHARES if progress < until)[:num_lengths]


def learning_rate(peak: float, step: int, progress: float) -> float:
    """Linear warm-up, a plateau, then a linear decay to a hundredth."""
    decay = 1.0 if progress < _DECAY_FROM else max(0.01, (1 - progress) / (1 - _DECAY_FROM))
    return peak * min(1, (step + 1) / _WARMUP_STEPS) * decay


__all__ = ("EXPORT_EVERY", "FIRST_EXPORT", "ROW_LENGTHS", "learning_rate", "row_shares")
