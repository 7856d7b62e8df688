"""Decode groups: sequences that share one forward pass, and when they join and part.

A group of one holds the sequence's plain caches (no array masks, so it runs as fast as the model can); a larger one
holds batch caches. Each group runs one step ahead: its `waiting` tokens are sampled and, before anyone reads them,
already fed to the next forward pass. Rows join and leave together with their waiting token, so membership may change
at any time. A sequence's first token is handed out as soon as it is known, with nothing queued behind it: what a CPU
queues it computes, and a client waits for that token as for no other. The sequence then takes a step alone, to be
ahead like the others, and joins with it.

                     start_decode()      decode()    decode()             decode()
    fed              end of the prompt               token 1, token 2     token 3
    waiting after                                    token 3              token 4      (in flight)
    delivered                            token 1     token 2              token 3
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from adapters.mlx import cache_state
from adapters.mlx.arrays import evaluate_soon
from adapters.mlx.cache_state import Caches
from adapters.mlx.sampled import Sampled, join
from adapters.mlx.sampler import GroupSampler
from adapters.mlx.sampler_row import SamplerRow
from domain.decode_groups import choose_group
from domain.errors import ComputeFailed
from domain.ids import SequenceId

Forward = Callable[[mx.array, Caches], mx.array]
"""Tokens uint32 [rows, length] and caches to logits [rows, length, vocab]; advances the caches."""


@dataclass(slots=True, eq=False)
class Row:
    """One open sequence. `position`: tokens its state covers, the one in flight included.

    `caches`: its own plain caches until it has a group, then the group's. `first`: its first token, from the end of
    its prompt until it has a group. `failure`: what ended it, not yet reported.
    """

    id: SequenceId
    caches: Caches
    position: int = 0
    sampler: SamplerRow | None = None
    first: Sampled | None = None
    is_first_out: bool = False
    group: "DecodeGroup | None" = None
    failure: ComputeFailed | None = None


class DecodeGroup:
    """Compute thread only. `rows` and `waiting` are in the same order."""

    def __init__(self, forward: Forward, rows: list[Row], caches: Caches) -> None:
        self.rows = rows
        self.caches = caches
        self.waiting: Sampled | None = None
        self._forward = forward
        self._sampler = self._new_sampler()
        for row in rows:
            row.group = self

    @classmethod
    def start(cls, forward: Forward, row: Row) -> "DecodeGroup":
        """A group of one that has fed the row's first token."""
        assert row.first is not None
        group = cls(forward, [row], row.caches)
        first, row.caches, row.first = row.first.tokens, [], None
        group._feed(first)
        return group

    def advance(self) -> Sampled:
        """Queue the next step on the waiting tokens and return those, still lazy. A failure is left on the rows."""
        current = self.waiting
        assert current is not None
        self._feed(current.tokens)
        return current

    def absorb(self, other: "DecodeGroup") -> None:
        """Take in another group's rows. Copies both groups' state; the other must not be used afterwards."""
        assert self.waiting is not None
        assert other.waiting is not None
        self._sampler.detach()
        other._sampler.detach()
        if len(self.rows) == 1 and len(other.rows) == 1:
            self.caches = cache_state.merge([self.caches, other.caches])
        else:
            batch, more = self._as_batch(), other._as_batch()
            cache_state.extend(batch, more)
            self.caches = batch
        self.waiting = join([self.waiting, other.waiting])
        for row in other.rows:
            row.group = self
        self.rows = [*self.rows, *other.rows]
        self._sampler = self._new_sampler()

    def remove(self, leaving: Sequence[Row]) -> None:
        """Drop rows with their state. The last row's group is empty afterwards."""
        self._sampler.detach()
        kept = [index for index, row in enumerate(self.rows) if row not in leaving]
        for row in leaving:
            row.group = None
        self._narrow(kept)

    def split(self, leaving: Sequence[Row]) -> None:
        """Move rows, with their waiting tokens, to groups of their own."""
        assert self.waiting is not None
        self._sampler.detach()
        for row in leaving:
            index = self.rows.index(row)
            alone = DecodeGroup(self._forward, [row], cache_state.take_row(self.caches, index))
            alone.waiting = self.waiting.narrow([index])
        self._narrow([index for index, row in enumerate(self.rows) if row.group is self])

    def _narrow(self, kept: list[int]) -> None:
        if not kept:
            self.rows, self.caches, self.waiting = [], [], None
            return
        if len(kept) == 1 and len(self.rows) > 1:
            self.caches = cache_state.take_row(self.caches, kept[0])
        elif len(kept) < len(self.rows):
            cache_state.keep_rows(self.caches, kept)
        self.waiting = None if self.waiting is None else self.waiting.narrow(kept)
        self.rows = [self.rows[index] for index in kept]
        self._sampler = self._new_sampler()

    def _as_batch(self) -> Caches:
        return cache_state.merge([self.caches]) if len(self.rows) == 1 else self.caches

    def _new_sampler(self) -> GroupSampler:
        return GroupSampler([_sampler_of(row) for row in self.rows])

    def _feed(self, tokens: mx.array) -> None:
        try:
            logits = self._forward(tokens[:, None], self.caches)[:, -1]
            for row in self.rows:
                row.position += 1
            self.waiting = self._choose(logits)
            evaluate_soon([*self.waiting.arrays(), *self._sampler.history()])
        except Exception as error:  # the caches are in an unknown state now
            for row in self.rows:
                row.failure = row.failure or ComputeFailed(f"a decode step failed: {error}")
            self.caches, self.waiting = [], None

    def _choose(self, logits: mx.array) -> Sampled:
        try:
            return self._sampler.sample(logits)
        except Exception:
            return self._choose_one_by_one(logits)

    def _choose_one_by_one(self, logits: mx.array) -> Sampled:
        """Some row's sampling failed: find out whose. It gets a token nobody will see and is reported next time."""
        self._sampler.detach()
        parts: list[Sampled] = []
        for index, row in enumerate(self.rows):
            try:
                alone = GroupSampler([_sampler_of(row)])
                parts.append(alone.sample(logits[index : index + 1]))
                alone.detach()
            except Exception as error:
                row.failure = ComputeFailed(f"sampling failed: {error}")
                parts.append(Sampled(mx.zeros(1, mx.uint32)))
        return join(parts)


def _sampler_of(row: Row) -> SamplerRow:
    assert row.sampler is not None
    return row.sampler


def join_groups(groups: list[DecodeGroup]) -> list[DecodeGroup]:
    """Let groups of one join others of similar length; returns the groups that are left, in order."""
    settled = [group for group in groups if len(group.rows) > 1]
    for group in groups:
        if len(group.rows) != 1:
            continue
        shapes = cache_state.recurrent_shapes(group.caches)
        alike = [other for other in settled if cache_state.recurrent_shapes(other.caches) == shapes]
        index = choose_group(group.rows[0].position, [[row.position for row in other.rows] for other in alike])
        if index is None:
            settled.append(group)
        else:
            alike[index].absorb(group)
    return settled


__all__ = ("DecodeGroup", "Forward", "Row", "join_groups")
