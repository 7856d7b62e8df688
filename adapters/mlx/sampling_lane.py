"""Rows of a decode group that need the same work to choose a token, so that none pays for what another asked for.

    lane            chooses
    greedy          the largest logit
    drawing         the largest of logits by temperature plus Gumbel noise
    ranking k       the same among the k largest, found by partition
    ranking all     the same among what a sort of the whole vocabulary keeps

Greedy rows whose logits are adjusted first (bias, penalties, no end yet) are a lane of their own, and so are rows that
a grammar holds.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import mlx.core as mx

from adapters.mlx.arrays import map_rows
from adapters.mlx.penalties import Penalties
from adapters.mlx.sampler_row import SamplerRow, noise_key
from adapters.mlx.token_filters import TokenFilters, ranking_of
from adapters.mlx.token_masks import TokenMasks


class LaneKind(NamedTuple):
    """What rows of one lane have in common. `ranking` as in `ranking_of`."""

    is_greedy: bool
    is_untouched: bool = False
    ranking: int = 0
    is_constrained: bool = False

    @classmethod
    def of(cls, row: SamplerRow) -> "LaneKind":
        if row.params.is_greedy:
            return cls(True, row.is_untouched, is_constrained=row.constraint is not None)
        return cls(False, ranking=ranking_of(row.params), is_constrained=row.constraint is not None)


class Lane:
    """Samples for a fixed list of rows of one kind; `members`: where they stand in their group."""

    def __init__(self, kind: LaneKind, members: Sequence[int], rows: Sequence[SamplerRow]) -> None:
        self.members = tuple(members)
        self._rows = tuple(rows)
        self._kind = kind
        self._masks = TokenMasks(rows)
        self._penalties = Penalties(rows) if any(row.counts is not None for row in rows) else None
        self._bias = _stacked([row.bias for row in rows])
        self._ends = None if not any(row.is_too_short for row in rows) else _stacked([row.ends for row in rows])
        self._filters = None if kind.is_greedy else TokenFilters([row.params for row in rows])

    def sample(self, logits: mx.array) -> mx.array:
        """uint32 [rows] from the lane's logits [rows, vocab]. Lazy; nothing is recorded."""
        if self._kind.is_greedy and all(row.is_untouched for row in self._rows):
            return mx.argmax(logits, axis=-1)
        adjusted = self._adjusted(self._masks.apply(logits.astype(mx.float32)))
        if self._filters is not None:
            adjusted = self._filters.apply(adjusted) + self._noise(logits.shape[-1])
        return mx.argmax(adjusted, axis=-1)

    def record(self, tokens: mx.array) -> None:
        """Take the chosen tokens into the rows' history."""
        if self._penalties is not None:
            self._penalties.count(tokens)
        for row in self._rows:
            row.num_sampled += 1

    def detach(self) -> None:
        """Hand each row its own history back."""
        if self._penalties is not None:
            self._penalties.hand_back(self._rows)

    def history(self) -> Iterable[mx.array]:
        """Lazy state that grows with each step."""
        return () if self._penalties is None else (self._penalties.counts,)

    def _adjusted(self, logits: mx.array) -> mx.array:
        if self._bias is not None:
            logits = logits + self._bias
        if self._penalties is not None:
            logits = self._penalties.apply(logits)
        must_go_on = [not row.may_end for row in self._rows]
        if self._ends is not None and any(must_go_on):
            logits = mx.where(mx.array(must_go_on)[:, None] & self._ends, -mx.inf, logits)
        return logits

    def _noise(self, vocab_size: int) -> mx.array:
        keys = mx.array([noise_key(row.seed, row.num_sampled) for row in self._rows], dtype=mx.uint32)

        def draw(key: mx.array) -> mx.array:
            return mx.random.gumbel((vocab_size,), key=key)

        return map_rows(draw, keys)


def lanes_of(rows: Sequence[SamplerRow]) -> list[Lane]:
    """Every row in one lane, in the order of their first rows."""
    members: dict[LaneKind, list[int]] = {}
    for index, row in enumerate(rows):
        members.setdefault(LaneKind.of(row), []).append(index)
    return [Lane(kind, indices, [rows[index] for index in indices]) for kind, indices in members.items()]


def _stacked(parts: Sequence[mx.array | None]) -> mx.array | None:
    """One row a part, zeros for those that are absent; None when all are."""
    found = next((part for part in parts if part is not None), None)
    if found is None:
        return None
    none = mx.zeros_like(found)
    return mx.stack([none if part is None else part for part in parts])


__all__ = ("Lane", "LaneKind", "lanes_of")
