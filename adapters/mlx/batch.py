"""Decode groups: sequences that share one forward pass, and the rules by which groups join.

A group of one holds the sequence's plain caches, which need no mask arrays. A larger one holds batch caches, whose full
KV needs no mask either while all rows have one length. Each group runs one step ahead: its `waiting` tokens are sampled
and fed to the next forward pass before they are read. Rows join and leave together with their waiting token, so
membership may change at any time. A sequence's first token is delivered as soon as it is known, with nothing queued
behind it: a CPU computes what is queued at once, which would add a step to the time to first token. The sequence then
takes a step alone, to be ahead like the others, and joins with it.

A failed join leaves both groups unchanged. Rows that left are dropped together before the next step, after other rows
were captured at the end of this one.

A draft is verified by one pass of the waiting tokens and the draft behind them (`verify`). Its positions are then
sampled one by one, as without a draft, up to the first token that differs: the sampler never sees a position that plain
decoding does not have, and nothing of it has to be undone. What was fed behind that token is undone (`Rollback`).

A row constrained by a grammar runs ahead like the others: the forward pass of its waiting token is queued, the token is
read and accepted, and the next one is chosen with the mask that was computed during the pass (`finish_step`).

                     start_decode()      decode()    decode()             decode()
    fed              end of the prompt               token 1, token 2     token 3
    waiting after                                    token 3              token 4      (in flight)
    delivered                            token 1     token 2              token 3
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import mlx.core as mx

from adapters.mlx.caches.leaves import Caches, live_arrays
from adapters.mlx.caches.rollback import Rollback
from adapters.mlx.caches.rows import append_rows, give_back, keep_rows, make_room, recurrent_shapes, take_row
from adapters.mlx.caches.views import shifted
from adapters.mlx.cuda.attention import verifying
from adapters.mlx.loaded_network import LoadedNetwork
from adapters.mlx.runtime.arrays import evaluate, evaluate_soon, token_array
from adapters.mlx.sampling.logit_rules import SamplerRow
from adapters.mlx.sampling.sampled import Sampled
from adapters.mlx.sampling.sampler import GroupSampler
from domain.errors import ComputeFailed
from domain.ids import SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix.prompt_content import MediaSpan
from domain.scheduling.decode_groups import choose_group, rows_capacity, rows_in_place

_logger = logging.getLogger("cairn.mlx")


@dataclass(slots=True, eq=False)
class Row:
    """One open sequence. `position`: tokens that its state covers, the one in flight included.

    `caches`: plain caches, empty once the sequence has a group. `last_logits`: [vocab], of the prompt's last token so
    far, if that was in a scored chunk. `first`: the first token, from the end of the prompt until the sequence has a
    group. `failure`: the error that ended it, not yet reported. `media`: the images of its prompt.
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
    media: tuple[MediaSpan, ...] = ()
    shift: int = 0
    """The number by which positions behind the prompt are less than the number of tokens."""

    def of_prompt(self, id: SequenceId, caches: Caches) -> "Row":
        """A row of the same prompt with these caches, at position 0."""
        return Row(id, caches, media=self.media, shift=self.shift)


class DecodeGroup:
    """Sequences that decode together. `rows` and `waiting` are in the same order. `stays_alone`: the group failed to
    join another, or was lost. Compute thread only."""

    def __init__(self, network: LoadedNetwork, rows: list[Row], caches: Caches) -> None:
        self.rows = rows
        self.caches = caches
        self.waiting: Sampled | None = None
        self.stays_alone = False
        self._has_gone = False
        self._unfinished: tuple[mx.array, Sampled] | None = None
        """The logits of a queued step whose next tokens are not chosen yet, and the tokens that it was fed."""
        self._network = network
        self._sampler = self._new_sampler()
        for row in rows:
            row.group = self

    @classmethod
    def start(cls, network: LoadedNetwork, row: Row) -> "DecodeGroup":
        """Returns a group of one that has fed the row's first token."""
        assert row.first is not None
        group = cls(network, [row], row.caches)
        first, row.caches, row.first = row.first, [], None
        group._feed(first)
        group.finish_step()
        return group

    def advance(self) -> Sampled:
        """Queues the next step on the waiting tokens and returns those, still lazy. Call `finish_step` once every
        group's step is queued. An error is stored on the rows."""
        current = self.waiting
        assert current is not None
        self._feed(current)
        return current

    def verify(self, drafts: Sequence[Sequence[int]]) -> list[Sampled]:
        """Feeds the waiting tokens with a draft behind them; returns the waiting tokens, and then those of the draft
        that were accepted for every row. Waits for them. An error is stored on the rows.

        `drafts`: one a row, of one length, each in the vocabulary and without a token that ends the answer."""
        given = [_waiting_of(self)]
        try:
            rollback = Rollback(self.caches)
            tokens = mx.concatenate([given[0].fed, mx.stack([token_array(draft) for draft in drafts])], axis=1)
            logits = self._pass(tokens)
            for index, guess in enumerate((*zip(*drafts, strict=True), None)):
                if self._sampler.is_constrained:
                    self._accept(given[-1])
                self._queue_choice(logits[:, index])
                chosen = _waiting_of(self)
                has_failed = any(row.failure is not None for row in self.rows)  # a failed row has no choice
                if guess is None or chosen.read()[0] != [*guess] or has_failed:
                    break
                given.append(chosen)
            self._undo(rollback, tokens, len(given))
        except Exception as error:
            self._fail(ComputeFailed(f"a decode step failed: {error}"))
        return given

    def propose(self, depth: int) -> list[list[int]]:
        """Returns `depth` tokens that the model's own drafter expects behind each row's waiting one. Waits for them. An
        error is stored on the rows, and the tokens are none."""
        propose = self._network.propose
        assert propose is not None
        try:
            found = propose(_waiting_of(self).fed, self.caches, depth, self._sampler.draft, self._shifts())
            evaluate([found])
            return cast(list[list[int]], found.tolist())
        except Exception as error:  # the drafter's state may be ahead of the others
            self._fail(ComputeFailed(f"drafting failed: {error}"))
            return [[] for _ in self.rows]

    def finish_step(self) -> None:
        """If a grammar constrains some row: lets it accept the tokens that were fed, and chooses the next ones with the
        masks that follow. Waits for both. An error is stored on the rows."""
        if self._unfinished is None:
            return
        (logits, fed), self._unfinished = self._unfinished, None
        try:
            self._accept(fed)
            self._queue_choice(logits)
        except Exception as error:
            self._fail(ComputeFailed(f"a decode step failed: {error}"))

    def absorb(self, others: Sequence["DecodeGroup"]) -> None:
        """Takes in the rows of groups of one, which must not be used afterwards. Their state moves (see `append_rows`).
        If this raises, all groups are unchanged, but the row of a group whose state was lost has an error."""
        for group in (self, *others):
            group._sampler.detach()
        rows = [row for group in (self, *others) for row in group.rows]
        sampler = None
        try:
            waiting = Sampled.joined([_waiting_of(group) for group in (self, *others)])
            sampler = self._new_sampler(rows)
            append_rows(self.caches, len(self.rows), [one.caches for one in others], rows_capacity(len(rows)))
        except Exception as error:
            if sampler is not None:
                sampler.detach()
            for group in (self, *others):
                group._sampler = group._new_sampler()
                if not group.caches:
                    group._fail(ComputeFailed(f"joining a batch failed: {error}"))
            raise
        self.rows, self.waiting, self._sampler = rows, waiting, sampler
        for other in others:
            other.rows, other.caches, other.waiting = [], [], None
        for row in rows:
            row.group = self

    def take_out(self, row: Row, *, may_copy: bool) -> Caches | None:
        """Removes a row and returns its state as plain caches: moved if the row is alone, otherwise copied. None if
        copying is not allowed or the state was lost."""
        others = [other for other in self.rows if other is not row and other.group is self]
        caches: Caches | None = None
        if self.caches and len(self.rows) == 1:
            caches = self.caches
        elif self.caches and may_copy:
            caches = take_row(self.caches, self.rows.index(row), is_last=not others)
        self.remove([row])
        return caches

    def remove(self, leaving: Sequence[Row]) -> None:
        """Removes rows. Their state is dropped by `narrow`, or at once if no row is left."""
        for row in leaving:
            row.group = None
        self._has_gone = True
        if all(row.group is not self for row in self.rows):
            self._sampler.detach()
            self.rows, self.caches, self.waiting = [], [], None

    def split(self, leaving: Sequence[Row]) -> None:
        """Moves rows, with their waiting tokens, to groups of their own."""
        assert self.waiting is not None
        self._sampler.detach()
        for row in leaving:
            index = self.rows.index(row)
            try:
                caches, waiting = take_row(self.caches, index), self.waiting.narrowed([index])
                alone = DecodeGroup(self._network, [row], caches)
                alone.waiting = waiting
            except Exception as error:
                row.group, row.failure = None, ComputeFailed(f"leaving a batch failed: {error}")
        self._drop_gone()

    def narrow(self) -> None:
        """Drops the state of all rows that left, together. An error is stored on the rows."""
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
            waiting = self.waiting.narrowed(order) if self.waiting is not None and order else None
        except Exception as error:
            self.rows = [self.rows[index] for index in order]
            self._fail(ComputeFailed(f"narrowing a batch failed: {error}"))
            return
        self.rows, self.waiting = [self.rows[index] for index in order], waiting
        self.caches = self.caches if order else []
        self._sampler = self._new_sampler()

    def give_back(self) -> None:
        """Frees spare rows and the state of rows that left, for use under memory pressure. If memory does not suffice
        to move the others, nothing changes."""
        self.narrow()
        try:
            give_back(self.caches)
        except Exception as error:
            _logger.warning("a batch could not be made smaller: %s", error)

    def _fail(self, error: ComputeFailed) -> None:
        """Ends every row of the group, whose caches are in an unknown state."""
        for row in self.rows:
            row.failure = row.failure or error
        self.caches, self.waiting, self._unfinished = [], None, None
        self.stays_alone = True

    def _new_sampler(self, rows: Sequence[Row] | None = None) -> GroupSampler:
        return GroupSampler([_sampler_of(row) for row in rows or self.rows])

    def _feed(self, sampled: Sampled) -> None:
        try:
            logits = self._pass(sampled.fed)[:, -1]
            if self._sampler.is_constrained:
                self._unfinished = logits, sampled
                evaluate_soon([logits])
            else:
                self._queue_choice(logits)
        except Exception as error:
            self._fail(ComputeFailed(f"a decode step failed: {error}"))

    def _pass(self, tokens: mx.array) -> mx.array:
        """Feeds tokens [rows, length] and returns their logits [rows, length, vocab], lazy. The only forward pass of
        decoding."""
        make_room(self.caches, tokens.shape[1])
        with verifying(tokens.shape[1] > 1):
            logits = self._network.forward(tokens, shifted(self.caches, self._shifts()))
        for row in self.rows:
            row.position += tokens.shape[1]
        return logits

    def _shifts(self) -> list[int]:
        return [row.shift for row in self.rows]

    def _undo(self, rollback: Rollback, fed: mx.array, num_kept: int) -> None:
        """Undoes the pass of `fed` [rows, width] but for its first `num_kept` tokens."""
        num_again = rollback.undo(fed.shape[1], num_kept)
        for row in self.rows:
            row.position -= fed.shape[1] - num_kept + num_again
        if num_again:
            self._pass(fed[:, :num_again])
            evaluate_soon(live_arrays(self.caches))

    def _accept(self, fed: Sampled) -> None:
        """Waits for the tokens and gives them to the constraints, whose errors are stored on their rows."""
        for row, token_id in zip(self.rows, fed.read()[0], strict=True):
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
        """Finds the row whose sampling failed. It gets a token that is never delivered; its error is reported with the
        next step."""
        self._sampler.detach()
        parts: list[Sampled] = []
        for index, row in enumerate(self.rows):
            try:
                alone = GroupSampler([_sampler_of(row)])
                sampled = alone.sample(logits[index : index + 1])
                sampled.read()
                parts.append(sampled)
                alone.detach()
            except Exception as error:
                row.failure = ComputeFailed(f"sampling failed: {error}")
                parts.append(Sampled(mx.zeros(1, mx.uint32)))
        self._sampler = self._new_sampler()
        return Sampled.joined(parts)


def _sampler_of(row: Row) -> SamplerRow:
    assert row.sampler is not None
    return row.sampler


def _waiting_of(group: DecodeGroup) -> Sampled:
    assert group.waiting is not None
    return group.waiting


# ---- joining -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Target:
    """A group that others may join. `lengths`: of its rows and of those that will join."""

    group: DecodeGroup
    lengths: list[int]
    joining: list[DecodeGroup] = field(default_factory=list[DecodeGroup])


def join_groups(groups: Sequence[DecodeGroup], shape: MemoryShape) -> list[DecodeGroup]:
    """Lets groups of one join others of similar length; returns the remaining groups, in order.

    All that join one group do so at once. A row that cannot join continues alone and is not tried again."""
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
    """Joins all at once, or one at a time if that fails; returns those that did not join."""
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
