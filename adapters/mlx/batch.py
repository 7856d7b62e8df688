"""Decode groups: sequences that share one forward pass, and which groups join which.

A group of one holds the sequence's plain caches (no array masks, so it runs as fast as the model can); a larger one
holds batch caches, whose full KV needs no mask either while all rows are of one length. Each group runs one step ahead:
its `waiting` tokens are sampled and, before anyone reads them, already fed to the next forward pass. Rows join and
leave together with their waiting token, so membership may change at any time. A sequence's first token is handed out as
soon as it is known, with nothing queued behind it: a CPU computes what is queued at once, which would add a step to the
time to first token. The sequence then takes a step alone, to be ahead like the others, and joins with it.

What cannot be joined leaves both groups as they were. Rows that left are dropped together before the next step, so
what others capture at the end of a step is copied first.

A row that a grammar constrains runs ahead like the others: the forward pass of its waiting token is queued, the token
is read and accepted, and the next one is chosen with the mask that was computed meanwhile (`settle`).

                     start_decode()      decode()    decode()             decode()
    fed              end of the prompt               token 1, token 2     token 3
    waiting after                                    token 3              token 4      (in flight)
    delivered                            token 1     token 2              token 3
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from adapters.mlx.caches.layout import Caches
from adapters.mlx.caches.rows import append_rows, give_back, keep_rows, make_room, recurrent_shapes, take_row
from adapters.mlx.runtime.arrays import evaluate_soon
from adapters.mlx.sampling.logit_rules import SamplerRow
from adapters.mlx.sampling.sampled import Sampled, join
from adapters.mlx.sampling.sampler import GroupSampler
from domain.errors import ComputeFailed
from domain.ids import SequenceId
from domain.memory.shape import MemoryShape
from domain.scheduling.decode_groups import choose_group, rows_capacity, rows_in_place

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
    """Compute thread only. `rows` and `waiting` are in the same order. `stays_alone`: it
    could not join another, or was lost."""

    def __init__(self, forward: Forward, rows: list[Row], caches: Caches) -> None:
        self.rows = rows
        self.caches = caches
        self.waiting: Sampled | None = None
        self.stays_alone = False
        self._has_gone = False
        self._unsettled: tuple[mx.array, Sampled] | None = None
        """Logits of a constrained step that is queued, and the tokens that it was fed."""
        self._forward = forward
        self._sampler = self._new_sampler()
        for row in rows:
            row.group = self

    @classmethod
    def start(cls, forward: Forward, row: Row) -> "DecodeGroup":
        """A group of one that has fed the row's first token."""
        assert row.first is not None
        group = cls(forward, [row], row.caches)
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

    def settle(self) -> None:
        """If a grammar constrains some row, have it accept the tokens that were fed, and choose the next ones by what
        it allows then. Waits for these tokens, and for the masks. A failure is left on the rows."""
        if self._unsettled is None:
            return
        (logits, fed), self._unsettled = self._unsettled, None
        try:
            self._accept(fed)
            self._queue_choice(logits)
        except Exception as error:
            self._lose(ComputeFailed(f"a decode step failed: {error}"))

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
        others = [other for other in self.rows if other is not row and other.group is self]
        caches: Caches | None = None
        if self.caches and len(self.rows) == 1:
            caches = self.caches
        elif self.caches and may_copy:
            caches = take_row(self.caches, self.rows.index(row), is_last=not others)
        self.remove([row])
        return caches

    def remove(self, leaving: Sequence[Row]) -> None:
        """Rows that end. Their state is dropped by `narrow`, or at once when no row is left."""
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
                alone = DecodeGroup(self._forward, [row], caches)
                alone.waiting = waiting
            except Exception as error:
                row.group, row.failure = None, ComputeFailed(f"leaving a batch failed: {error}")
        self._drop_gone()

    def narrow(self) -> None:
        """Drop the rows that left, all at once. A failure is left on the rows."""
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
        """Hold no more than the rows need: room for others goes, and with it rows that left. For when memory is short;
        where there is not even enough to move, all stays as it is."""
        self.narrow()
        try:
            give_back(self.caches)
        except Exception as error:
            _logger.warning("a batch could not be made smaller: %s", error)

    def _lose(self, error: ComputeFailed) -> None:
        """The caches are in an unknown state: every row of the group has failed."""
        for row in self.rows:
            row.failure = row.failure or error
        self.caches, self.waiting, self._unsettled = [], None, None
        self.stays_alone = True

    def _new_sampler(self, rows: Sequence[Row] | None = None) -> GroupSampler:
        return GroupSampler([_sampler_of(row) for row in rows or self.rows])

    def _feed(self, sampled: Sampled) -> None:
        try:
            logits = self._passed(sampled)
            if self._sampler.is_held:
                self._unsettled = logits, sampled
                evaluate_soon([logits])
            else:
                self._queue_choice(logits)
        except Exception as error:
            self._lose(ComputeFailed(f"a decode step failed: {error}"))

    def _passed(self, sampled: Sampled) -> mx.array:
        """Logits [rows, vocab] behind these tokens, lazy."""
        make_room(self.caches, 1)
        logits = self._forward(sampled.fed, self.caches)[:, -1]
        for row in self.rows:
            row.position += 1
        return logits

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
        evaluate_soon([*self.waiting.arrays(), *self._sampler.history()])

    def _choose(self, logits: mx.array) -> Sampled:
        try:
            return self._sampler.sample(logits)
        except Exception:
            return self._choose_one_by_one(logits)

    def _choose_one_by_one(self, logits: mx.array) -> Sampled:
        """Some row's sampling failed: find out which. It gets a token that is never delivered; its error is reported
        with the next step."""
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


# ---- which groups join ---------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Target:
    """A group that others may join. `lengths`: of its rows, and of those that are to join it."""

    group: DecodeGroup
    lengths: list[int]
    joining: list[DecodeGroup] = field(default_factory=list[DecodeGroup])


def join_groups(groups: Sequence[DecodeGroup], shape: MemoryShape) -> list[DecodeGroup]:
    """Let groups of one join others of similar length; returns the groups that are left, in order.

    A row that cannot join goes on alone, and is not tried again. All that join one group do so at once. What is
    compared of the groups is found once a step, not once for every pair of them."""
    single = [group for group in groups if len(group.rows) == 1 and not group.stays_alone]
    targets = [_Target(group, _lengths(group)) for group in groups if group not in single]
    shapes = {group: recurrent_shapes(group.caches) for group in groups} if single else {}
    for group in single:
        alike = [one for one in targets if not one.group.stays_alone and shapes[one.group] == shapes[group]]
        index = choose_group(group.rows[0].position, [one.lengths for one in alike], shape)
        if index is None:
            targets.append(_Target(group, _lengths(group)))
        else:
            alike[index].joining.append(group)
            alike[index].lengths += _lengths(group)
    return [left for one in targets for left in (one.group, *_absorb_all(one.group, one.joining))]


def _lengths(group: DecodeGroup) -> list[int]:
    return [row.position for row in group.rows]


def _absorb_all(group: DecodeGroup, joining: Sequence[DecodeGroup]) -> list[DecodeGroup]:
    """Those that did not join. All at once, or, where that fails, each for itself."""
    try:
        if joining:
            group.absorb(joining)
    except Exception as error:
        if len(joining) > 1:
            return [alone for other in joining for alone in _absorb_all(group, [other])]
        joining[0].stays_alone = True
        _logger.warning("sequence %s could not join a batch and is decoded alone: %s", joining[0].rows[0].id, error)
        return list(joining)
    return []
