"""Sampling for a decode group: each row by its own settings, rows of one kind in a few vectorised operations.

A row's choice depends on its own logits, settings, history and seed alone, and the noise of token `i` comes from a key
made of (seed, i): so the same logits and seed give the same token in any batch. Rows are divided into buckets by the
operations they need, so that no row pays for the settings of another:

    bucket          chooses
    greedy          the largest logit
    drawing         the largest of logits by temperature plus Gumbel noise
    ranking k       the same among the k largest, found by partition
    ranking all     the same among what a sort of the whole vocabulary keeps

Greedy rows whose logits are adjusted first (bias, penalties, min_tokens) have a bucket of their own, and so have rows
that a grammar constrains. Everything but a grammar's mask is lazy: the caller evaluates, so that the next forward pass
can be queued on tokens that were not read yet.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.runtime.arrays import from_numpy, map_rows
from adapters.mlx.sampling.logit_rules import MinTokens, Penalties, SamplerRow, TokenFilters, TokenMasks, ranking_of
from adapters.mlx.sampling.sampled import LogprobArrays, Sampled

STEPS_AHEAD = 32
_MASK64 = 2**64 - 1
_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Constants of SplitMix64, whose state is `seed` strides plus the token's index."""


def noise_keys(seeds: Sequence[int], indices: Sequence[int], num_steps: int = 1) -> NDArray[np.uint32]:
    """Returns [steps, rows, 2]: the MLX random key of each row's token `indices[row] + step`, a 64-bit mix of the seed
    and the token's index, as two 32-bit words."""
    starts = np.array([seed & _MASK64 for seed in seeds], np.uint64) * _STRIDE
    tokens = np.arange(1, num_steps + 1, dtype=np.uint64)[:, None] + np.array(indices, np.uint64)
    mixed = starts + tokens
    for shift, factor in _MIXING:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.stack([mixed >> np.uint64(32), mixed & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)


class NoiseKeys:
    """The random keys of a fixed list of rows, from `indices` on, computed for many steps at a time."""

    def __init__(self, seeds: Sequence[int], indices: Sequence[int]) -> None:
        self._seeds = tuple(seeds)
        self._indices = tuple(indices)
        self._begin = 0
        self._table: mx.array | None = None

    def at(self, step: int) -> mx.array:
        """uint32 [rows, 2]: the keys of the token `step` steps after the first."""
        if self._table is None or not 0 <= step - self._begin < STEPS_AHEAD:
            self._begin = step
            self._table = from_numpy(noise_keys(self._seeds, [index + step for index in self._indices], STEPS_AHEAD))
        return self._table[step - self._begin]


class BucketKind(NamedTuple):
    """The operations that rows of one bucket share. `ranking` as in `ranking_of`."""

    is_greedy: bool
    is_untouched: bool = False
    ranking: int = 0
    is_constrained: bool = False

    @classmethod
    def of(cls, row: SamplerRow) -> "BucketKind":
        if row.params.is_greedy:
            return cls(True, row.is_untouched, is_constrained=row.constraint is not None)
        return cls(False, ranking=ranking_of(row.params), is_constrained=row.constraint is not None)


class Bucket:
    """A sampler for a fixed list of rows of one kind. `members`: their indices in the group."""

    def __init__(self, kind: BucketKind, members: Sequence[int], rows: Sequence[SamplerRow]) -> None:
        self.members = tuple(members)
        self._rows = tuple(rows)
        self._kind = kind
        self._masks = TokenMasks(rows)
        self._penalties = Penalties(rows) if any(row.counts is not None for row in rows) else None
        self._bias = _stacked([row.bias for row in rows])
        self._min_tokens = MinTokens(rows)
        self._filters = None if kind.is_greedy else TokenFilters([row.params for row in rows])
        self._keys = NoiseKeys([row.seed for row in rows], [row.num_sampled for row in rows])
        self._num_steps = self._num_returned = 0

    def sample(self, logits: mx.array) -> mx.array:
        """Returns uint32 [rows] from the bucket's logits [rows, vocab]. Lazy; nothing is recorded."""
        suppressed = self._min_tokens.suppressed(self._num_steps)
        if self._filters is not None or self._bias is not None or self._penalties is not None:
            logits = logits.astype(mx.float32)
        logits = self._adjusted(self._masks.apply(logits))
        if suppressed is not None:
            logits = mx.where(suppressed, -mx.inf, logits)
        return self._chosen(logits)

    def draft(self, logits: mx.array, ahead: int) -> mx.array:
        """Guesses the tokens `ahead` positions behind the next one, uint32 [rows], from a drafter's logits [rows,
        vocab]: with the noise of that position and the history so far, without masks. Lazy; nothing is recorded."""
        return self._chosen(self._adjusted(logits.astype(mx.float32)), ahead)

    def record(self, tokens: mx.array) -> None:
        """Adds the chosen tokens to the rows' history."""
        if self._penalties is not None:
            self._penalties.count(tokens)
        self._num_steps += 1

    def detach(self) -> None:
        """Writes the history back to the rows."""
        for row in self._rows:
            row.num_sampled += self._num_steps - self._num_returned
        self._num_returned = self._num_steps
        if self._penalties is not None:
            self._penalties.hand_back(self._rows)

    def history(self) -> Iterable[mx.array]:
        """The lazy arrays that grow with each step."""
        return () if self._penalties is None else (self._penalties.counts,)

    def _adjusted(self, logits: mx.array) -> mx.array:
        if self._bias is not None:
            logits = logits + self._bias
        return logits if self._penalties is None else self._penalties.apply(logits)

    def _chosen(self, logits: mx.array, ahead: int = 0) -> mx.array:
        def draw(key: mx.array) -> mx.array:
            return mx.random.gumbel(logits.shape[-1:], key=key)

        if self._filters is not None:
            logits = self._filters.apply(logits) + map_rows(draw, self._keys.at(self._num_steps + ahead))
        return mx.argmax(logits, axis=-1)


def buckets_of(rows: Sequence[SamplerRow]) -> list[Bucket]:
    """The buckets of all rows, in the order of their first rows."""
    members: dict[BucketKind, list[int]] = {}
    for index, row in enumerate(rows):
        members.setdefault(BucketKind.of(row), []).append(index)
    return [Bucket(kind, indices, [rows[index] for index in indices]) for kind, indices in members.items()]


def _stacked(parts: Sequence[mx.array | None]) -> mx.array | None:
    """One row a part, zeros for absent ones; None if all are absent."""
    found = next((part for part in parts if part is not None), None)
    if found is None:
        return None
    none = mx.zeros_like(found)
    return mx.stack([none if part is None else part for part in parts])


class GroupSampler:
    """A sampler for a fixed list of rows. When the rows change, call `detach` and build a new one. Compute thread only.

    `is_constrained`: a grammar constrains some row."""

    def __init__(self, rows: Sequence[SamplerRow]) -> None:
        self._rows = tuple(rows)
        self._buckets = buckets_of(rows)
        self._indices = [mx.array(bucket.members) for bucket in self._buckets]
        order = [index for bucket in self._buckets for index in bucket.members]
        self._places = mx.array([order.index(index) for index in range(len(order))])
        wanted = [row.params.num_logprobs for row in rows]
        self._asking = tuple(index for index, count in enumerate(wanted) if count is not None)
        self._masks_of_asking = TokenMasks([self._rows[index] for index in self._asking])
        self._num_tops = tuple(count for count in wanted if count is not None)
        self.is_constrained = any(row.constraint is not None for row in rows)

    def sample(self, logits: mx.array) -> Sampled:
        """Chooses from logits [rows, vocab]. Nothing is recorded if this raises."""
        chosen = [bucket.sample(part) for bucket, part in self._parts(logits)]
        tokens = self._in_order(chosen)
        sampled = Sampled(tokens, self._logprobs(logits, tokens) if self._asking else None, self._asking)
        for bucket, part in zip(self._buckets, chosen, strict=True):
            bucket.record(part)
        return sampled

    def draft(self, logits: mx.array, ahead: int) -> mx.array:
        """Guesses the tokens `ahead` positions behind the next one, uint32 [rows], from a drafter's logits [rows,
        vocab]. Lazy; nothing is recorded."""
        return self._in_order([bucket.draft(part, ahead) for bucket, part in self._parts(logits)])

    def detach(self) -> None:
        """Writes the history back to the rows, before they are sampled by another object."""
        for bucket in self._buckets:
            bucket.detach()

    def history(self) -> list[mx.array]:
        """The lazy arrays that grow with each step; evaluate them with the tokens to keep their graph short."""
        return [array for bucket in self._buckets for array in bucket.history()]

    def _parts(self, logits: mx.array) -> list[tuple[Bucket, mx.array]]:
        """The logits of each bucket."""
        if len(self._buckets) == 1:
            return [(self._buckets[0], logits)]
        return [(bucket, logits[indices]) for bucket, indices in zip(self._buckets, self._indices, strict=True)]

    def _in_order(self, chosen: Sequence[mx.array]) -> mx.array:
        """The tokens of all buckets, in the order of the rows."""
        return chosen[0] if len(chosen) == 1 else mx.concatenate(list(chosen))[self._places]

    def _logprobs(self, logits: mx.array, tokens: mx.array) -> LogprobArrays:
        """Log probabilities of the model's own distribution over the allowed tokens, before penalties and
        temperature."""
        rows = mx.array(self._asking)
        asked = self._masks_of_asking.apply(logits[rows].astype(mx.float32))
        return LogprobArrays.of(asked, tokens[rows], self._num_tops)
