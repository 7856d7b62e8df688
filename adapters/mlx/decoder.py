"""Decode steps: which groups take one, in which order they are queued and read, and the results by sequence.

`Decoder.step` is the only caller of decode groups, and `DecodeGroup._pass` the only forward pass of decoding. A group
whose rows all have a draft verifies it; the others feed their waiting tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from adapters.mlx.batch import DecodeGroup, Row, join_groups
from adapters.mlx.loaded_network import LoadedNetwork
from adapters.mlx.runtime.arrays import clear_beyond
from adapters.mlx.runtime.device import spare_bytes
from adapters.mlx.sampling.sampled import Sampled
from application.ports.compute import DecodeResult, Draft
from domain.errors import ComputeFailed
from domain.ids import SequenceId
from domain.memory.shape import MemoryShape
from domain.models.model_card import DecodeMode, ModelDescription
from domain.request.stream import TokenLogprob


class _Step(NamedTuple):
    """One group's step. `given`: the tokens of each position that was fed. `verified`: a draft behind the waiting token
    of each row; empty for a plain step."""

    rows: tuple[Row, ...]
    given: Sequence[Sampled]
    verified: Sequence[Draft] = ()


class Decoder:
    """The decode steps of one model's sequences. Compute thread only."""

    def __init__(self, model: ModelDescription, network: LoadedNetwork) -> None:
        self._model, self._network, self._spare_bytes = model, network, spare_bytes()

    def step(self, rows: Sequence[Row], memory: MemoryShape, drafts: Mapping[SequenceId, Draft]) -> list[DecodeResult]:
        """Returns the next tokens of each row, in order. A row that failed has an error instead, and no group any more;
        the error of its next token is reported by the next step. `memory`: decides which groups join."""
        begun = [row for row in rows if row.is_first_out]
        firsts = [_take_first(row) for row in rows if not row.is_first_out]
        running = self._started(begun)
        groups = self._regrouped(running, memory)
        _without_failed(running)
        for group in groups:
            group.narrow()
        groups = [group for group in groups if group.waiting is not None]
        verified = {group: found for group in groups if (found := self._proposed(group, drafts))}
        plain = [group for group in groups if group not in verified and group.waiting is not None]
        # Queue every group's next step before reading any: the device computes while results are delivered.
        steps = [_Step(tuple(group.rows), [group.advance()]) for group in plain]
        for group in plain:
            group.finish_step()
        for group, found in verified.items():
            steps.append(_Step(tuple(group.rows), group.verify([draft.token_ids for draft in found]), found))
        results = {result.id: result for step in (*steps, *firsts) for result in _read(step)}
        return [results.get(row.id) or DecodeResult(row.id, error=row.failure) for row in rows]

    def _proposed(self, group: DecodeGroup, drafts: Mapping[SequenceId, Draft]) -> list[Draft]:
        """Returns the tokens to verify behind the waiting ones, as many for each row; empty if a row has none. Waits
        for the waiting tokens if every row has a draft."""
        if group.waiting is None or not all(row.id in drafts for row in group.rows):
            return []
        try:
            waiting = group.waiting.read()[0]
        except Exception:  # the step's own read reports it
            return []
        if any(token in _ends_of(row) for row, token in zip(group.rows, waiting, strict=True)):
            return []
        given = [drafts[row.id] for row in group.rows]
        found: Sequence[Sequence[int]] = [
            draft.token_ids[1:] if draft.token_ids[:1] == (token,) else ()
            for draft, token in zip(given, waiting, strict=True)
        ]
        drafters = [draft.drafter for draft in given]
        depth, own = min(draft.depth for draft in given), self._model.own_drafter
        if depth and self._network.propose is not None and own is not None and not all(found):
            found, drafters = group.propose(depth), [own] * len(given)
        valid = [self._valid(row, token_ids) for row, token_ids in zip(group.rows, found, strict=True)]
        width = min(map(len, valid))
        return [Draft(ids[:width], 0, drafter) for ids, drafter in zip(valid, drafters, strict=True)] if width else []

    def _valid(self, row: Row, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The tokens up to one that is invalid or ends the answer."""
        size, ends = self._model.vocab_size, _ends_of(row)
        return tuple(takewhile(lambda id: 0 <= id < size and id not in ends, token_ids))

    def _started(self, rows: Sequence[Row]) -> list[Row]:
        """Feeds the first token of rows without a group; returns the rows that have not failed."""
        new = [row for row in rows if row.group is None and row.failure is None]
        if new:  # frees the buffers of the end of a prompt, once its first token was reported
            clear_beyond(self._spare_bytes)
        for row in new:
            try:
                DecodeGroup.start(self._network, row)
            except Exception as error:
                row.failure = ComputeFailed(f"a decode step failed: {error}")
        return _without_failed(rows)

    def _regrouped(self, rows: Sequence[Row], memory: MemoryShape) -> list[DecodeGroup]:
        """Returns groups of exactly these rows: other rows of their groups are split off and wait."""
        named = {row.id for row in rows}
        groups = groups_of(rows)
        for group in groups:
            group.narrow()
            unnamed = [row for row in group.rows if row.id not in named]
            if unnamed and group.waiting is not None:  # a lost group has no rows to split
                group.split(unnamed)
        may_join = len(groups) > 1 and self._model.decode_mode is DecodeMode.BATCHED
        return join_groups(groups, memory) if may_join else groups


def groups_of(rows: Iterable[Row]) -> list[DecodeGroup]:
    """The groups of these rows, each once."""
    return list({id(row.group): row.group for row in rows if row.group is not None}.values())


def leave_groups(rows: Sequence[Row]) -> None:
    """Removes rows from their groups."""
    for group in groups_of(rows):
        group.remove([row for row in group.rows if row in rows])


def _without_failed(rows: Sequence[Row]) -> list[Row]:
    """Removes the rows that have failed from their groups; returns the others."""
    leave_groups([row for row in rows if row.failure is not None])
    return [row for row in rows if row.failure is None]


def _ends_of(row: Row) -> frozenset[int]:
    return row.sampler.end_ids if row.sampler is not None else frozenset()


def _take_first(row: Row) -> _Step:
    if row.first is None:
        raise RuntimeError(f"sequence {row.id} has not started to decode")
    row.is_first_out = True
    return _Step((row,), [row.first])


def _read(step: _Step) -> list[DecodeResult]:
    """Returns the results of one group's step."""
    try:
        tokens, logprobs = zip(*[sampled.read() for sampled in step.given], strict=True)
    except Exception as error:
        return [DecodeResult(row.id, error=ComputeFailed(f"a decode step failed: {error}")) for row in step.rows]
    results: list[DecodeResult] = []
    for index, (row, *given) in enumerate(zip(step.rows, *tokens, strict=True)):
        asked: list[TokenLogprob] = []
        for found in logprobs:  # a comprehension is a call a row
            if index in found:
                asked += (found[index],)
        draft = step.verified[index] if step.verified else None
        drafter, num_proposed = (None, 0) if draft is None else (draft.drafter, len(draft.token_ids))
        results.append(DecodeResult(row.id, (*given,), (*asked,), None, num_proposed, drafter))
    return results
