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
from adapters.mlx.min_tokens import MinTokens
from adapters.mlx.noise_keys import NoiseKeys
from adapters.mlx.penalties import Penalties
from adapters.mlx.sampler_row import SamplerRow
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
        self._min_tokens = MinTokens(rows)
        self._filters = None if kind.is_greedy else TokenFilters([row.params for row in rows])
        self._keys = NoiseKeys([row.seed for row in rows], [row.num_sampled for row in rows])
        self._num_steps = self._num_told = 0

    def sample(self, logits: mx.array) -> mx.array:
        """uint32 [rows] from the lane's logits [rows, vocab]. Lazy; nothing is recorded."""
        suppressed = self._min_tokens.suppressed(self._num_steps)
        if self._filters is not None or self._bias is not None or self._penalties is not None:
            logits = logits.astype(mx.float32)
        logits = self._adjusted(self._masks.apply(logits))
        if suppressed is not None:
            logits = mx.where(suppressed, -mx.inf, logits)
        if self._filters is not None:
            logits = self._filters.apply(logits) + self._noise(logits.shape[-1])
        return mx.argmax(logits, axis=-1)

    def record(self, tokens: mx.array) -> None:
        """Take the chosen tokens into the rows' history."""
        if self._penalties is not None:
            self._penalties.count(tokens)
        self._num_steps += 1

    def detach(self) -> None:
        """Hand each row its own history back."""
        for row in self._rows:
            row.num_sampled += self._num_steps - self._num_told
        self._num_told = self._num_steps
        if self._penalties is not None:
            self._penalties.hand_back(self._rows)

    def history(self) -> Iterable[mx.array]:
        """Lazy state that grows with each step."""
        return () if self._penalties is None else (self._penalties.counts,)

    def _adjusted(self, logits: mx.array) -> mx.array:
        if self._bias is not None:
            logits = logits + self._bias
        return logits if self._penalties is None else self._penalties.apply(logits)

    def _noise(self, vocab_size: int) -> mx.array:
        def draw(key: mx.array) -> mx.array:
            return mx.random.gumbel((vocab_size,), key=key)

        return map_rows(draw, self._keys.at(self._num_steps))


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
