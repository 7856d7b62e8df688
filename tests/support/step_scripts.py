"""Random lives of sequences of a few models, drawn from a seed: what a script did and was told, to compare two runs."""

import random
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx

from adapters.fake.constraint import FakeConstraint
from adapters.mlx import arrays
from adapters.mlx.model import MlxModel
from application.ports.compute import DecodeStart
from domain.errors import ComputeFailed
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.payload import GroupPayloads
from domain.sampling import SamplingParams
from tests.support.state_replay import prompt_of, state_bytes

SAMPLINGS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, num_logprobs=3),
    SamplingParams(temperature=0, frequency_penalty=1.0, repetition_penalty=1.5),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_k=5, num_logprobs=0),
    SamplingParams(temperature=0.8, top_p=0.7, presence_penalty=0.5, logit_bias=((5, 2.0),)),
)
ANSWERS = frozenset({b"yes", b"yet another thing", b"no"})


class Fault(RuntimeError):
    pass


class Handing:
    """Hands over as MLX does, after and before a moment; `countdown`: the how-manieth from now on fails."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.countdown = 0
        self.by: int | None = None
        """The thread that does so now."""
        self._chance = chance

    def __call__(self, given: Iterable[mx.array]) -> None:
        given = list(given)
        if not given:  # what could not be built
            return
        self.countdown -= 1
        if self.countdown == 0:
            raise Fault("the device has no memory left")
        self.by = threading.get_ident()
        try:
            self._linger()
            arrays.hand_over(given)
            self._linger()
        finally:
            self.by = None

    def soon(self, given: Iterable[mx.array]) -> None:
        """In place of `evaluate_soon`."""
        arrays.await_turn()
        self(given)

    def _linger(self) -> None:
        if self._chance is not None and self._chance.random() < 0.3:
            time.sleep(self._chance.random() * 0.003)


@dataclass
class Live:
    """A sequence that decodes."""

    prompt: tuple[int, ...]
    start: DecodeStart
    output: list[int] = field(default_factory=list[int])


class Script:
    """One life. Everything it does is drawn from the seed and from what it was told."""

    def __init__(
        self, models: Sequence[MlxModel], seed: int, handing: Handing, workers: Executor, readers: Executor
    ) -> None:
        """`workers`: of grammars. `readers`: read what was captured."""
        self._chance = random.Random(seed)
        self._models = models
        self._handing = handing
        self._workers, self._readers = workers, readers
        self._next = 0
        self._live: list[dict[SequenceId, Live]] = [{} for _ in models]
        self._left: list[dict[SequenceId, tuple[int, Live]]] = [{} for _ in models]
        self._reads: list[Any] = []
        self.log: list[object] = []

    def run(self, num_steps: int) -> list[object]:
        if self._chance.random() < 0.3:
            self._handing.countdown = self._chance.randint(1, 3 * num_steps)
        acts = (
            [self._decode] * 10
            + [self._begin] * 4
            + [self._close, self._leave, self._take_over, self._capture, self._fork, self._preempt, self._give_back]
        )
        for _ in range(num_steps):
            which = self._chance.randrange(len(self._models))
            act = self._chance.choice(acts)
            try:
                act(which)
            except ComputeFailed as error:
                self._note(act.__name__, which, "failed", str(error))
                for id in set(self._live[which]) - self._models[which].open_ids():
                    del self._live[which][id]
        for which, model in enumerate(self._models):
            while self._live[which] and self._chance.random() < 0.8:
                self._decode(which)
            model.close(list(model.open_ids()))
            model.drop(list(model.left_ids()))
        self._handing.countdown = 0
        self.log += [read.result() for read in self._reads]
        return self.log

    def _note(self, *what: object) -> None:
        self.log.append(what)

    def _new(self) -> SequenceId:
        self._next += 1
        return SequenceId(self._next)

    def _start_of(self, prompt: tuple[int, ...], output: Sequence[int] = ()) -> DecodeStart:
        start = DecodeStart(
            IdRow(prompt),
            self._chance.choice(SAMPLINGS),
            seed=self._chance.randrange(1 << 40),
            output_ids=tuple(output),
        )
        if self._chance.random() < 0.2:
            start = replace(start, min_tokens=self._chance.randint(1, 6), eos_token_ids=frozenset({2, 5}))
        if self._chance.random() < 0.1 and not output:
            constraint = FakeConstraint(self._workers, ANSWERS, frozenset({2}), lambda: None)
            start = replace(start, constraint=constraint)
        return start

    def _begin(self, which: int) -> None:
        if len(self._live[which]) < 7:
            prompt = prompt_of(self._chance.choice([2, 5, 9, 30, 31, 70]), self._chance.randrange(5))
            self._open(which, Live(prompt, self._start_of(prompt)), self._new())

    def _open(self, which: int, live: Live, id: SequenceId, *, is_open: bool = False) -> None:
        model, whole = self._models[which], (*live.prompt, *live.start.output_ids)
        if not is_open:
            model.open(id)
        scored = self._chance.choice([None, None, None, 2])
        while (at := model.position(id)) < len(whole) - 1 and self._chance.random() < 0.8:
            end = min(len(whole) - 1, at + 32)
            scores = model.prefill(id, whole[at:end], num_prompt_logprobs=scored)
            self._note("scores", which, id, scores)
            if self._chance.random() < 0.5:
                self._decode(which)
        scores = model.start_decode(id, whole[model.position(id) :], live.start, num_prompt_logprobs=scored)
        self._note("begun", which, id, scores)
        self._live[which][id] = live

    def _decode(self, which: int) -> None:
        chosen = [id for id in self._live[which] if self._chance.random() < 0.9]
        for result in self._models[which].decode(chosen):
            live = self._live[which][result.id]
            live.output += result.token_ids
            self._note("told", which, result.id, result.token_ids, result.logprobs, str(result.error))
            has_ended = live.start.constraint is not None and 2 in result.token_ids
            if has_ended:
                self._models[which].close([result.id])
            if result.error is not None or has_ended:
                del self._live[which][result.id]
        self._note("at", which, sorted((id, self._models[which].position(id)) for id in self._live[which]))

    def _one(self, which: int) -> SequenceId | None:
        return self._chance.choice([*self._live[which]]) if self._live[which] else None

    def _close(self, which: int) -> None:
        if (id := self._one(which)) is not None:
            del self._live[which][id]
            self._models[which].close([id])

    def _leave(self, which: int) -> None:
        if (id := self._one(which)) is not None:
            live = self._live[which].pop(id)
            left = self._models[which].leave(id, may_copy=self._chance.random() < 0.8)
            self._note("left", which, id, left)
            if left is not None:
                self._left[which][id] = (left.position, live)

    def _take_over(self, which: int) -> None:
        if not self._left[which]:
            return
        left, (position, live) = self._left[which].popitem()
        whole = (*live.prompt, *live.start.output_ids, *live.output)
        position = min(position, len(whole) - 1)
        id = self._new()
        self._models[which].open(id)
        try:
            self._models[which].take_over(id, left, position)
        except ComputeFailed as error:
            self._note("not taken over", which, id, str(error))
        self._open(which, Live(whole, self._start_of(whole)), id, is_open=True)

    def _capture(self, which: int) -> None:
        if (id := self._one(which)) is None or not self._models[which].description.layout.is_reusable:
            return
        position = self._models[which].position(id)
        spans = [(start, start + 16) for start in range(0, position - 15, 16)]
        blocks = self._models[which].capture_blocks(id, spans)
        snapshot = self._models[which].capture_snapshot(id, position - position % 16)
        for payloads in (*blocks, snapshot):
            self._read_later(payloads)
        live = self._live[which][id]
        whole = (*live.prompt, *live.start.output_ids, *live.output)
        if position < len(whole) and len(self._live[which]) < 7:
            restored = self._new()
            self._models[which].open(restored)
            self._models[which].restore(restored, position, blocks, snapshot)
            self._open(which, Live(whole, self._start_of(whole)), restored, is_open=True)

    def _read_later(self, payloads: GroupPayloads) -> None:
        self._reads.append(self._readers.submit(state_bytes, payloads))

    def _fork(self, which: int) -> None:
        if len(self._live[which]) > 5:
            return
        model, prompt, first = self._models[which], prompt_of(40, self._chance.randrange(5)), self._new()
        model.open(first)
        model.prefill(first, prompt[:32])
        others = [self._new() for _ in range(2)]
        model.fork(first, others)
        for id in (first, *others):
            self._open(which, Live(prompt, self._start_of(prompt)), id, is_open=True)

    def _preempt(self, which: int) -> None:
        id = self._one(which)
        if id is None or self._live[which][id].start.constraint is not None:
            return
        live = self._live[which].pop(id)
        self._models[which].close([id])
        output = (*live.start.output_ids, *live.output)
        self._open(which, Live(live.prompt, self._start_of(live.prompt, output)), self._new())

    def _give_back(self, which: int) -> None:
        self._models[which].give_back()
        mx.clear_cache()


__all__ = ("Fault", "Handing", "Script")
