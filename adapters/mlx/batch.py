"""A decode group: sequences that share one forward pass. Which groups join is `group_joins`.

A group of one holds the sequence's plain caches (no array masks, so it runs as fast as the model can); a larger one
holds batch caches, whose full KV needs no mask either while all rows are of one length. Each group runs one step ahead:
its `waiting` tokens are sampled and, before anyone reads them, already fed to the next forward pass. Rows join and
leave together with their waiting token, so membership may change at any time. A sequence's first token is handed out as
soon as it is known, with nothing queued behind it: a CPU computes what is queued at once, which would add a step to the
time to first token. The sequence then takes a step alone, to be ahead like the others, and joins with it.

What cannot be joined leaves both groups as they were. Rows that left are dropped together before the next step, so
what others capture at the end of a step is copied first.

A row that a grammar holds runs ahead like the others: the forward pass of its waiting token is queued, the token is
read and accepted, and the next one is chosen with the mask that was computed meanwhile (`settle`; `reading_order` says
in which order).

                     start_decode()      decode()    decode()             decode()
    fed              end of the prompt               token 1, token 2     token 3
    waiting after                                    token 3              token 4      (in flight)
    delivered                            token 1     token 2              token 3
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import NamedTuple

import mlx.core as mx

from adapters.mlx.arrays import evaluate_soon
from adapters.mlx.caches.layout import Caches
from adapters.mlx.caches.rows import append_rows, give_back, keep_rows, make_room, take_row
from adapters.mlx.reading_order import Reading, ReadingOrder
from adapters.mlx.sampled import Sampled, join
from adapters.mlx.sampler import GroupSampler
from adapters.mlx.sampler_row import SamplerRow
from adapters.mlx.step_threads import StepThreads
from domain.decode_groups import rows_capacity, rows_in_place
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


class _Unsettled(NamedTuple):
    """A constrained step that is queued, and what of it is left for later by how it is read."""

    reading: Reading
    logits: mx.array
    fed: Sampled


class DecodeGroup:
    """Compute thread only, or a step thread that it waits for. `rows` and `waiting` are in the same order.
    `stays_alone`: it could not join another."""

    def __init__(
        self, forward: Forward, rows: list[Row], caches: Caches, order: ReadingOrder, threads: StepThreads | None
    ) -> None:
        """`threads`: build and queue its steps, but for those that a grammar holds; None: this one does."""
        self.rows = rows
        self.caches = caches
        self.waiting: Sampled | None = None
        self.stays_alone = False
        self._has_gone = False
        self._unsettled: _Unsettled | None = None
        self._order = order
        self._threads = threads
        self._settled_s = perf_counter()
        self._forward = forward
        self._sampler = self._new_sampler()
        for row in rows:
            row.group = self

    @classmethod
    def start(cls, forward: Forward, row: Row, order: ReadingOrder, threads: StepThreads | None) -> "DecodeGroup":
        """A group of one that has fed the row's first token."""
        assert row.first is not None
        group = cls(forward, [row], row.caches, order, threads)
        first, row.caches, row.first = row.first, [], None
        group._feed(first)
        group.settle()
        return group

    def advance(self) -> Sampled:
        """Queue the next step on the waiting tokens and return those, still lazy. A failure is left on the rows. To be
        followed by `settle`, once every group's step is queued."""
        current = self.waiting
        assert current is not None
        self._feed(current)
        return current

    def confirm(self) -> bool:
        """Wait until its step is handed over; whether it was. What that raised is left on the rows. To be called before
        anything but the next step is made of it: others would be told its failure, or a state be kept that has none."""
        try:
            if self.waiting is not None:
                self.waiting.confirm()
        except Exception as error:
            self._lose(ComputeFailed(f"a decode step failed: {error}"))
        return self.waiting is not None

    def settle(self) -> None:
        """Where a grammar holds some row: tell it what was fed, and choose the next tokens with what it allows then.
        Waits for the tokens that were fed, and for the masks. A failure is left on the rows."""
        if self._unsettled is None:
            return
        (reading, logits, fed), self._unsettled = self._unsettled, None
        try:
            if reading is Reading.LATE:
                self._accept(fed)
            if reading is not Reading.AT_ONCE:
                self._queue_choice(logits)
        except Exception as error:
            self._lose(ComputeFailed(f"a decode step failed: {error}"))
        before_s, self._settled_s = self._settled_s, perf_counter()
        self._order.record(reading, self._settled_s - before_s)

    def absorb(self, others: Sequence["DecodeGroup"]) -> None:
        """Take in the rows of groups of one, which must not be used afterwards. Their state moves (see `append_rows`).
        When this raises, all groups are what they were; one whose state could not be kept has a failure on its row."""
        for group in (self, *others):
            group._sampler.detach()
        rows = [row for group in (self, *others) for row in group.rows]
        sampler = None
        try:
            waiting = join([_waiting_of(group) for group in (self, *others)])
            sampler = self._new_sampler(rows)
            append_rows(self.caches, len(self.rows), [one.caches for one in others], rows_capacity(len(rows)))
        except Exception as error:
            if sampler is not None:
                sampler.detach()
            for group in (self, *others):
                group._sampler = group._new_sampler()
                if not group.caches:
                    group._lose(ComputeFailed(f"joining a batch failed: {error}"))
            raise
        self.rows, self.waiting, self._sampler = rows, waiting, sampler
        for other in others:
            other.rows, other.caches, other.waiting = [], [], None
        for row in rows:
            row.group = self

    def part(self, row: Row, *, may_copy: bool) -> Caches | None:
        """The state of a row that ends, as plain caches of its own; the row is out of the group. Of one that is alone
        it moves, otherwise it is copied. None where that may not be, or the state was lost."""
        self.confirm()
        others = [other for other in self.rows if other is not row and other.group is self]
        caches: Caches | None = None
        if self.caches and len(self.rows) == 1:
            caches = self.caches
        elif self.caches and may_copy:
            caches = take_row(self.caches, self.rows.index(row), is_last=not others)
        self.remove([row])
        return caches

    def remove(self, leaving: Sequence[Row]) -> None:
        """Rows that end. Their state is dropped by `narrow`, or at once when nobody is left."""
        for row in leaving:
            row.group = None
        self._has_gone = True
        if all(row.group is not self for row in self.rows):
            self._sampler.detach()
            self.rows, self.caches, self.waiting = [], [], None

    def split(self, leaving: Sequence[Row]) -> None:
        """Move rows, with their waiting tokens, to groups of their own."""
        assert self.waiting is not None
        self._sampler.detach()
        for row in leaving:
            index = self.rows.index(row)
            try:
                caches, waiting = take_row(self.caches, index), self.waiting.narrow([index])
                alone = DecodeGroup(self._forward, [row], caches, self._order, self._threads)
                alone.waiting = waiting
            except Exception as error:
                row.group, row.failure = None, ComputeFailed(f"leaving a batch failed: {error}")
        self._drop_gone()

    def narrow(self) -> None:
        """Drop whoever left, all at once. A failure is left on the rows."""
        if self._has_gone:
            self._sampler.detach()
            self._drop_gone()

    def _drop_gone(self) -> None:
        self._has_gone = False
        order = rows_in_place(len(self.rows), [index for index, row in enumerate(self.rows) if row.group is self])
        try:
            if len(order) == 1 and self.caches:
                self.caches = take_row(self.caches, order[0], is_last=True)
            elif order and self.caches:
                keep_rows(self.caches, order)
            waiting = self.waiting.narrow(order) if self.waiting is not None and order else None
        except Exception as error:
            self.rows = [self.rows[index] for index in order]
            self._lose(ComputeFailed(f"narrowing a batch failed: {error}"))
            return
        self.rows, self.waiting = [self.rows[index] for index in order], waiting
        self.caches = self.caches if order else []
        self._sampler = self._new_sampler()

    def give_back(self) -> None:
        """Hold no more than the rows need: room for others goes, and with it whoever left. For when memory is short;
        where there is not even enough to move, all stays as it is."""
        self.narrow()
        try:
            give_back(self.caches)
        except Exception as error:
            _logger.warning("a batch could not be made smaller: %s", error)

    def _lose(self, error: ComputeFailed) -> None:
        """The caches are in an unknown state: whoever is in the group has failed."""
        for row in self.rows:
            row.failure = row.failure or error
        self.caches, self.waiting, self._unsettled = [], None, None

    def _new_sampler(self, rows: Sequence[Row] | None = None) -> GroupSampler:
        return GroupSampler([_sampler_of(row) for row in rows or self.rows])

    def _feed(self, sampled: Sampled) -> None:
        try:
            if self._sampler.is_held:
                self._queue_constrained(sampled, self._passed(sampled))
            elif self._threads is None:
                evaluate_soon(self._built(sampled))
            else:
                step = self._threads.queue(partial(self._built, sampled))
                _waiting_of(self).queued_as(step)
        except Exception as error:
            self._lose(ComputeFailed(f"a decode step failed: {error}"))

    def _built(self, sampled: Sampled) -> list[mx.array]:
        """The next step, all lazy; what is to be computed of it."""
        self.waiting = self._choose(self._passed(sampled))
        return self._arrays()

    def _passed(self, sampled: Sampled) -> mx.array:
        """Logits [rows, vocab] behind these tokens, lazy."""
        make_room(self.caches, 1)
        logits = self._forward(sampled.fed, self.caches)[:, -1]
        for row in self.rows:
            row.position += 1
        return logits

    def _queue_constrained(self, fed: Sampled, logits: mx.array) -> None:
        reading = self._order.reading
        if reading is not Reading.LATE:
            self._accept(fed)
        self._unsettled = _Unsettled(reading, logits, fed)
        if reading is Reading.AT_ONCE:
            self._queue_choice(logits)
        else:
            evaluate_soon([logits])

    def _accept(self, fed: Sampled) -> None:
        """Waits for the tokens. What a grammar says against one is left on its row."""
        for row, token_id in zip(self.rows, fed.token_ids(), strict=True):
            constraint = _sampler_of(row).constraint
            if constraint is None or row.failure is not None:
                continue
            try:
                constraint.accept(token_id)
            except Exception as error:
                row.failure = ComputeFailed(f"a grammar failed: {error}")

    def _queue_choice(self, logits: mx.array) -> None:
        self.waiting = self._choose(logits)
        evaluate_soon(self._arrays())

    def _arrays(self) -> list[mx.array]:
        """All that is to be computed of a step whose tokens are chosen."""
        return [*_waiting_of(self).arrays(), *self._sampler.history()]

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
                parts.append(Sampled.of(mx.zeros(1, mx.uint32)))
        self._sampler = self._new_sampler()
        return join(parts)


def _sampler_of(row: Row) -> SamplerRow:
    assert row.sampler is not None
    return row.sampler


def _waiting_of(group: DecodeGroup) -> Sampled:
    assert group.waiting is not None
    return group.waiting


__all__ = ("DecodeGroup", "Forward", "Row")
