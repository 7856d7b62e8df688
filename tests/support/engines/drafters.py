"""Drafters for toy models that know the true answers, and abuse that: right, wrong, right by chance, longer than asked
for, outside the vocabulary; and costs by which drafts always pay."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from adapters.fake.model import FakeModel
from adapters.fake.options import FakeOptions
from application.ports.compute import DecodeStart
from domain.ids import ModelId, SequenceId
from domain.models.model_card import ModelSource
from domain.request.sampling import SamplingParams
from domain.speculation.gain import WIDTHS, WidthCosts

CHEAP = WidthCosts.measured([[*(10 + 0.1 * width for width in WIDTHS[:5]), 1e6]] * 2)
"""Drafts of up to 8 tokens always pay, longer ones never."""

DEPTH = 8


def _wrong(right: Sequence[int], chance: Random) -> list[int]:
    return [token ^ 1 for token in right]


def _by_chance(right: Sequence[int], chance: Random) -> list[int]:
    return [token if chance.random() < 0.7 else token ^ 1 for token in right]


def _too_long(right: Sequence[int], chance: Random) -> list[int]:
    return [*right, *range(200)]


def _invalid(right: Sequence[int], chance: Random) -> list[int]:
    return [*right[: chance.randint(0, 3)], -1, 1 << 40, *right]


KINDS: dict[str, Callable[[Sequence[int], Random], Sequence[int]]] = {
    "right": lambda right, chance: right,
    "wrong": _wrong,
    "by chance": _by_chance,
    "too long": _too_long,
    "invalid": _invalid,
}


class KnowingDrafter:
    """A drafter that was given the answers. `kind`: of KINDS, what it makes of them; `seed`: of its chance."""

    def __init__(self, kind: str, seed: int) -> None:
        self._spoil, self._chance = KINDS[kind], Random(seed)
        self._following: dict[tuple[int, ...], list[int]] = {}

    def learn(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        for place in range(len(answer)):
            self._following[*prompt, *answer[:place]] = list(answer[place : place + DEPTH])

    def __call__(self, text: Sequence[int]) -> Sequence[int]:
        return self._spoil(self._following.get(tuple(text), []), self._chance)


def greedy_drafter(options: FakeOptions, depth: int = 4) -> FakeOptions:
    """The toy with a drafter that computes what the toy itself would say greedily: right for greedy sequences, by
    chance for others. Drafts pay."""
    plain = replace(options, hook=None, drafter=None, width_costs=None)

    def draft(text: Sequence[int]) -> list[int]:
        model, id = FakeModel(ModelSource(ModelId("draft"), "nowhere"), plain), SequenceId(0)
        model.open(id)
        model.start_decode(id, text, DecodeStart(tuple(text), SamplingParams(temperature=0), seed=0))
        return [token for _ in range(depth) for token in model.decode([id])[0].token_ids]

    return replace(options, drafter=draft, width_costs=CHEAP)
