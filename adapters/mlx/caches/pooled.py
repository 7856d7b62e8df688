"""Tokens of which each group of `ratio` becomes one, used by mlx-vlm's families as its own class is.

    positions      0 .. 3   4 .. 7   8 .. 11   12 13
    kept of them   pooled   pooled   pooled    open: of no whole group yet
                                     last: goes into the next pooled one too, where groups overlap

mlx-vlm's own class does not keep the last group, so the first one of every pass lacks its overlap. Its open tokens lie
in a buffer of one group; here they are exactly those that are open, so that equal sequences have equal states.
"""

import mlx.core as mx

FIELDS = ("pooled", "open_kv", "open_gate", "last_kv", "last_gate")
"""The arrays of one sequence, [1, length, dim] each; None before the first token, or group."""


class PooledTokens:
    """The pooled tokens of one sequence in one layer. `overlaps`: a group is pooled together with the one before."""

    pooled: mx.array | None = None
    open_kv: mx.array | None = None
    open_gate: mx.array | None = None
    last_kv: mx.array | None = None
    last_gate: mx.array | None = None

    def __init__(self, ratio: int, *, overlaps: bool = False) -> None:
        self.ratio = ratio
        self.overlaps = overlaps
        self._repeats_last = False

    @property
    def offset(self) -> int:
        """The number of pooled tokens."""
        return 0 if self.pooled is None else self.pooled.shape[1]

    def accumulate_windows(self, kv: mx.array, gate: mx.array, offset: int) -> tuple[mx.array, mx.array, int]:
        """Takes the next tokens, [1, length, dim]; returns those of whole groups, and the position of the first. Where
        groups overlap the last one of the pass before comes first, whose result `update_and_fetch` drops."""
        kv, gate, first = _joined(self.open_kv, kv), _joined(self.open_gate, gate), offset - _length(self.open_kv)
        end = kv.shape[1] // self.ratio * self.ratio
        self.open_kv, self.open_gate = mx.contiguous(kv[:, end:]), mx.contiguous(gate[:, end:])
        kv, gate = kv[:, :end], gate[:, :end]
        self._repeats_last = end > 0 and self.last_kv is not None
        if end and self.overlaps:
            kv, gate, first = _joined(self.last_kv, kv), _joined(self.last_gate, gate), first - _length(self.last_kv)
            self.last_kv, self.last_gate = (mx.contiguous(one[:, -self.ratio :]) for one in (kv, gate))
        return kv, gate, first

    def update_and_fetch(self, pooled: mx.array) -> mx.array:
        """Takes what the tokens of `accumulate_windows` became; returns all pooled ones."""
        added = pooled[:, 1:] if self._repeats_last else pooled
        self._repeats_last = False
        if added.shape[1]:
            self.pooled = _joined(self.pooled, added)
        return added if self.pooled is None else self.pooled

    def make_mask(self, length: int, offset: int) -> mx.array | None:
        """The groups that each of `length` tokens from `offset` on sees, [length, pooled]: those that ended by then.
        None if that is all of them."""
        if self.pooled is None or length == 1:
            return None
        ends = mx.arange(offset + 1, offset + length + 1)
        return mx.arange(self.offset) < ends[:, None] // self.ratio


def _joined(before: mx.array | None, after: mx.array) -> mx.array:
    return after if before is None else mx.concatenate([before, after], axis=1)


def _length(array: mx.array | None) -> int:
    return 0 if array is None else array.shape[1]
