"""Decode groups: sequences that share one forward pass, and when they join and part.

A group of one holds the sequence's plain caches (no array masks, so it runs as fast as the model can); a larger one
holds batch caches. Each group runs one step ahead: its `waiting` tokens are sampled and, before anyone reads them,
already fed to the next forward pass. Rows join and leave together with their waiting token, so membership may change
at any time. A sequence's first token is handed out as soon as it is known, with nothing queued behind it: a CPU
computes what is queued at once, which would add a step to the time to first token. The sequence then takes a step
alone, to be ahead like the others, and joins with it.

What cannot be joined leaves both groups as they were, and a row that cannot join goes on alone.

A row that a grammar holds runs ahead like the others: the forward pass of its waiting token is queued first, then the
token is read and accepted, and the next one is chosen with the mask that was computed meanwhile (`settle`).

                     start_decode()      decode()    decode()             decode()
    fed              end of the prompt               token 1, token 2     token 3
    waiting after                                    token 3              token 4      (in flight)
    delivered                            token 1     token 2              token 3
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from adapters.mlx.arrays import evaluate_soon
from adapters.mlx.caches.layout import Caches
from adapters.mlx.caches.rows import extend, fork, keep_rows, merge, recurrent_shapes, take_row
from adapters.mlx.sampled import Sampled, join
from adapters.mlx.sampler import GroupSampler
from adapters.mlx.sampler_row import SamplerRow
from domain.decode_groups import choose_group
from domain.errors import ComputeFailed
from domain.ids import SequenceId

Forward = Callable[[mx.array, Caches], mx.array]
"""Tokens uint32 [rows, length] and caches to logits [rows, length, vocab]; advances the caches."""


_logger = logging.getLogger("cairn.mlx")


@dataclass(slots=True, eq=False)
class Row:
    """One open sequence. `position`: tokens its state covers, the one in flight included.

    `caches`: its own plain caches until it has a group, then the group's. `last_logits`: [vocab], of the prompt's last
    token so far, if that was in a scored chunk. `first`: its first token, from the end of its prompt until it has a
    group. `failure`: what ended it, not yet reported.
    """

    id: SequenceId
    caches: Caches
    position: int = 0
    last_logits: mx.array | None = None
    sampler: SamplerRow | None = None
    first: Sampled | None = None
    is_first_out: bool = False
    group: "DecodeGroup | None" = None
    failure: ComputeFailed | None = None


class DecodeGroup:
    """Compute thread only. `rows` and `waiting` are in the same order. `stays_alone`: it could not join another."""

    def __init__(self, forward: Forward, rows: list[Row], caches: Caches) -> None:
        self.rows = rows
        self.caches = caches
        self.waiting: Sampled | None = None
        self.stays_alone = False
        self._unsettled: tuple[mx.array, mx.array] | None = None
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
        group.settle()
        return group

    def advance(self) -> Sampled:
        """Queue the next step on the waiting tokens and return those, still lazy. A failure is left on the rows. To be
        followed by `settle`, once every group's step is queued."""
        current = self.waiting
        assert current is not None
        self._feed(current.tokens)
        return current

    def settle(self) -> None:
        """Where a grammar holds some row: tell it what was fed, and choose the next tokens with what it allows then.
        Waits for the tokens that were fed, and for the masks. A failure is left on the rows."""
        if self._unsettled is None:
            return
        (tokens, logits), self._unsettled = self._unsettled, None
        try:
            for row, token_id in zip(self.rows, cast(list[int], tokens.tolist()), strict=True):
                _accept(row, token_id)
            self._queue_choice(logits)
        except Exception as error:
            self._lose(ComputeFailed(f"a decode step failed: {error}"))

    def absorb(self, other: "DecodeGroup") -> None:
        """Take in another group's rows. Copies both groups' state; the other must not be used afterwards. When this
        raises, both groups are what they were."""
        assert self.waiting is not None
        assert other.waiting is not None
        self._sampler.detach()
        other._sampler.detach()
        rows = [*self.rows, *other.rows]
        try:
            caches = self._joined(other)
            waiting = join([self.waiting, other.waiting])
            sampler = self._new_sampler(rows)
        except Exception:
            self._sampler, other._sampler = self._new_sampler(), other._new_sampler()
            raise
        self.rows, self.caches, self.waiting, self._sampler = rows, caches, waiting, sampler
        for row in other.rows:
            row.group = self

    def remove(self, leaving: Sequence[Row]) -> None:
        """Drop rows with their state. The last row's group is empty afterwards."""
        self._sampler.detach()
        kept = [index for index, row in enumerate(self.rows) if row not in leaving]
        for row in leaving:
            row.group = None
        self._narrow_or_lose(kept)

    def split(self, leaving: Sequence[Row]) -> None:
        """Move rows, with their waiting tokens, to groups of their own."""
        assert self.waiting is not None
        self._sampler.detach()
        for row in leaving:
            index = self.rows.index(row)
            try:
                caches, waiting = take_row(self.caches, index), self.waiting.narrow([index])
                alone = DecodeGroup(self._forward, [row], caches)
                alone.waiting = waiting
            except Exception as error:
                row.group, row.failure = None, ComputeFailed(f"leaving a batch failed: {error}")
        self._narrow_or_lose([index for index, row in enumerate(self.rows) if row.group is self])

    def _narrow_or_lose(self, kept: list[int]) -> None:
        try:
            self._narrow(kept)
        except Exception as error:
            self.rows = [self.rows[index] for index in kept]
            self._lose(ComputeFailed(f"narrowing a batch failed: {error}"))

    def _narrow(self, kept: list[int]) -> None:
        if not kept:
            self.rows, self.caches, self.waiting = [], [], None
            return
        if len(kept) == 1 and len(self.rows) > 1:
            self.caches = take_row(self.caches, kept[0])
        elif len(kept) < len(self.rows) and self.caches:
            caches = fork(self.caches)
            keep_rows(caches, kept)
            self.caches = caches
        self.waiting = None if self.waiting is None else self.waiting.narrow(kept)
        self.rows = [self.rows[index] for index in kept]
        self._sampler = self._new_sampler()

    def _joined(self, other: "DecodeGroup") -> Caches:
        if len(self.rows) == 1 and len(other.rows) == 1:
            return merge([self.caches, other.caches])
        batch = self._as_batch()
        extend(batch, other._as_batch())
        return batch

    def _as_batch(self) -> Caches:
        return merge([self.caches]) if len(self.rows) == 1 else fork(self.caches)

    def _lose(self, error: ComputeFailed) -> None:
        """The caches are in an unknown state: whoever is in the group has failed."""
        for row in self.rows:
            row.failure = row.failure or error
        self.caches, self.waiting, self._unsettled = [], None, None

    def _new_sampler(self, rows: Sequence[Row] | None = None) -> GroupSampler:
        return GroupSampler([_sampler_of(row) for row in rows or self.rows])

    def _feed(self, tokens: mx.array) -> None:
        try:
            logits = self._forward(tokens[:, None], self.caches)[:, -1]
            for row in self.rows:
                row.position += 1
            if any(_sampler_of(row).constraint is not None for row in self.rows):
                self._unsettled = tokens, logits
                evaluate_soon([logits])
            else:
                self._queue_choice(logits)
        except Exception as error:
            self._lose(ComputeFailed(f"a decode step failed: {error}"))

    def _queue_choice(self, logits: mx.array) -> None:
        self.waiting = self._choose(logits)
        evaluate_soon([*self.waiting.arrays(), *self._sampler.history()])

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


def _accept(row: Row, token_id: int) -> None:
    constraint = _sampler_of(row).constraint
    if constraint is None or row.failure is not None:
        return
    try:
        constraint.accept(token_id)
    except Exception as error:
        row.failure = ComputeFailed(f"a grammar failed: {error}")


def _sampler_of(row: Row) -> SamplerRow:
    assert row.sampler is not None
    return row.sampler


def join_groups(groups: list[DecodeGroup]) -> list[DecodeGroup]:
    """Let groups of one join others of similar length; returns the groups that are left, in order."""
    settled = [group for group in groups if len(group.rows) > 1 or group.stays_alone]
    for group in groups:
        if group not in settled and not _joins_one_of(settled, group):
            settled.append(group)
    return settled


def _joins_one_of(settled: Sequence[DecodeGroup], group: DecodeGroup) -> bool:
    shapes = recurrent_shapes(group.caches)
    alike = [other for other in settled if not other.stays_alone and recurrent_shapes(other.caches) == shapes]
    index = choose_group(group.rows[0].position, [[row.position for row in other.rows] for other in alike])
    if index is None:
        return False
    try:
        alike[index].absorb(group)
    except Exception as error:
        group.stays_alone = True
        _logger.warning("sequence %s could not join a batch and is decoded alone: %s", group.rows[0].id, error)
        return False
    return True


__all__ = ("DecodeGroup", "Forward", "Row", "join_groups")
