"""Random lives of sequences over the compute port: whatever came before, tokens are those of computing alone.

A life mixes what an engine does: prompts computed in chunks and in part, states captured, restored, left, taken over
and cancelled at any moment, also before anything was computed on them, and decode steps in changing company.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from application.ports.compute import DecodeStart, LoadedModel
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.request.sampling import SamplingParams
from tests.support.effort import scaled
from tests.support.mlx.contract_models import every_model
from tests.support.stores.state_replay import GRID, Captured, new_id, open_at, prompt_of

NUM_ACTS, MAX_OPEN = 120, 7
VOCAB = 250
SAMPLING = SamplingParams(temperature=0, num_logprobs=0)


@dataclass
class Sequence:
    """`tokens`: its prompt so far, up to where it is known; `output`: once it decodes."""

    tokens: tuple[int, ...]
    output: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    decodes: bool = False


class Life:
    def __init__(self, model: LoadedModel, seed: int) -> None:
        self._model = model
        self._chance = random.Random(seed)
        self._open: dict[SequenceId, Sequence] = {}
        self._left: dict[SequenceId, tuple[int, int, tuple[int, ...]]] = {}
        self._captured: list[tuple[tuple[int, ...], Captured]] = []
        self.ended: list[Sequence] = []

    def run(self) -> None:
        can_restore = self._model.description.layout.is_reusable
        acts = [self._decode] * 6 + [self._go_on] * 4 + [self._begin, self._end, self._leave, self._take]
        acts += [self._capture, self._restore, self._cancel, self._cancel] if can_restore else []
        for _ in range(NUM_ACTS):
            self._chance.choice(acts)()
        self.ended += [one for one in self._open.values() if one.decodes]
        self._model.close(list(self._open))
        self._model.drop(list(self._left))
        assert not self._model.open_ids() | self._model.left_ids()

    def _covered(self, id: SequenceId) -> tuple[int, ...]:
        one = self._open[id]
        return (*one.tokens, *one.output)[: self._model.position(id)]

    def _tail(self) -> tuple[int, ...]:
        return prompt_of(self._chance.choice([1, 2, 9, 33, 50]), self._chance.randrange(50), VOCAB)

    def _opened(self, tokens: tuple[int, ...]) -> SequenceId:
        id = new_id()
        self._model.open(id)
        self._open[id] = Sequence(tokens)
        return id

    def _some(self, *, decodes: bool | None = None) -> SequenceId | None:
        found = [id for id, one in self._open.items() if decodes is None or one.decodes is decodes]
        return self._chance.choice(found) if found else None

    def _begin(self) -> None:
        if len(self._open) < MAX_OPEN:
            self._opened(self._tail() + self._tail())

    def _go_on(self) -> None:
        """A chunk of a prompt, or its end."""
        if (id := self._some(decodes=False)) is None:
            return
        tokens, at = self._open[id].tokens, self._model.position(id)
        end = min(len(tokens) - 1, (at // GRID + 1) * GRID)
        if at < end and self._chance.random() < 0.6:
            self._model.prefill(id, tokens[at:end])
        else:
            self._model.start_decode(id, tokens[at:], DecodeStart(IdRow(tokens), SAMPLING, seed=1))
            self._open[id].decodes = True

    def _decode(self) -> None:
        chosen = [id for id, one in self._open.items() if one.decodes and self._chance.random() < 0.9]
        for result in self._model.decode(chosen):
            assert result.error is None, result.error
            self._open[result.id].output += result.token_ids
            self._open[result.id].logprobs += [told.logprob for told in result.logprobs]

    def _end(self) -> None:
        if (id := self._some()) is not None:
            self._note_end(id)
            self._model.close([id])

    def _note_end(self, id: SequenceId) -> None:
        one = self._open.pop(id)
        if one.decodes:
            self.ended.append(one)

    def _leave(self) -> None:
        if (id := self._some()) is not None:
            self._left_by(id)

    def _left_by(self, id: SequenceId) -> None:
        covered = self._covered(id)
        left = self._model.keep_live(id, may_copy=self._chance.random() < 0.8)
        self._note_end(id)
        if left is not None:
            assert left.position == len(covered)
            self._left[id] = (left.first, left.position, covered)

    def _take(self, among: Iterable[SequenceId] = ()) -> None:
        sources = [id for id in among or self._left if id in self._left]
        if not sources or len(self._open) >= MAX_OPEN:
            return
        source = self._chance.choice(sources)
        first, last, covered = self._left.pop(source)
        at = self._chance.choice([first, last, self._chance.randint(first, last), max(first, last - 1)])
        self._model.take_over(self._opened(covered[:at] + self._tail()), source, at)

    def _capture(self) -> None:
        """All of a state at its position, as a store gives it back."""
        if (id := self._some()) is None or not (position := self._model.position(id)):
            return
        found = Captured(position, [], self._model.capture_snapshot(id, 0))
        self._captured.append((self._covered(id), found.on_host()))

    def _cancel(self) -> None:
        """Before anything is computed on a restored state, which then goes to another."""
        if (id := self._restore()) is not None:
            self._left_by(id)
            self._take([id])

    def _restore(self) -> SequenceId | None:
        if not self._captured or len(self._open) >= MAX_OPEN:
            return None
        covered, found = self._chance.choice(self._captured)
        id = self._opened(covered + self._tail())
        self._model.restore(id, found.position, found.blocks, found.snapshot)
        return id


def alone(model: LoadedModel, tokens: tuple[int, ...], num_new: int) -> Sequence:
    found, id = Sequence(tokens), open_at(model, tokens)
    model.start_decode(id, tokens[-1:], DecodeStart(IdRow(tokens), SAMPLING, seed=1))
    for _ in range(num_new):
        (result,) = model.decode([id])
        found.output += result.token_ids
        found.logprobs += [told.logprob for told in result.logprobs]
    model.close([id])
    return found


@every_model
@pytest.mark.parametrize("seed", range(scaled(8)))
@pytest.mark.exact
def test_tokens_do_not_depend_on_the_life_before(model: LoadedModel, seed: int) -> None:
    life = Life(model, seed)
    life.run()
    for one in life.ended:
        expected = alone(model, one.tokens, len(one.output))
        assert one.output == expected.output
        assert one.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
