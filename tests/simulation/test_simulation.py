"""Random workloads through the real services: right answers, exact accounting, sound storage, nothing left behind."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from adapters.fake.leaves import RecurrentLeaf
from adapters.fake.model import FakeModel
from application.ports.compute import DecodeStart
from application.services.prefix.live_tier import LiveState
from domain.prefix.hashing import BlockChain
from domain.prefix.prompt_content import BlockGrid, EncodedPrompt
from domain.prefix.record import Namespace
from tests.simulation.simulator import Simulation
from tests.support.effort import drawn

NUM_ACTIONS = 500
NUM_QUICK = 30
NUM_ALL = max(NUM_QUICK, drawn(144))
NUM_TOGETHER = 19


@cache
def played(seed: int) -> Counter[str]:
    return Simulation(seed).run(NUM_ACTIONS)


@pytest.mark.parametrize("seed", range(NUM_QUICK))
def test_a_random_run_is_right(seed: int) -> None:
    assert played(seed)["submitted"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(NUM_QUICK, NUM_ALL, NUM_TOGETHER))
def test_many_random_runs_are_right(first: int) -> None:
    for seed in range(first, min(first + NUM_TOGETHER, NUM_ALL)):
        assert Simulation(seed).run(NUM_ACTIONS)["submitted"] > 0, seed


def test_a_wrong_take_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the last tokens before the cut are not compared."""

    def careless(self: LiveState, chain: BlockChain, grid: BlockGrid) -> int:
        shared = min(len(common_hashes(chain, self.chain)) * chain.block_size + 5, chain.num_prompt - 1)
        position = min(shared, self.left.position)
        return position if position >= self.least else 0

    monkeypatch.setattr(LiveState, "reach", careless)
    with pytest.raises(AssertionError, match=r"wrong token|more was reused"):
        play_all(range(4, NUM_QUICK))


def test_an_image_that_is_taken_for_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: prompts are compared by the tokens that are fed."""

    def careless(namespace: Namespace, block_size: int, prompt: EncodedPrompt) -> BlockChain:
        return BlockChain(namespace, block_size, prompt.token_ids)

    monkeypatch.setattr(BlockChain, "of", careless)
    with pytest.raises(AssertionError, match=r"wrong token|more was reused"):
        play_all(range(14, NUM_QUICK))


def test_a_rejected_token_that_leaves_a_trace_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a recurrent state keeps what a rejected draft did to it."""
    step = FakeModel._next

    def careless(self: FakeModel, state: Any, start: DecodeStart, proposal: Sequence[int]) -> Any:
        given = step(self, state, start, proposal)
        for leaf in state.leaves.values() if len(given) <= len(proposal) else ():
            if isinstance(leaf, RecurrentLeaf):
                leaf.append(1)
        return given

    monkeypatch.setattr(FakeModel, "_next", careless)
    with pytest.raises(AssertionError, match="wrong token"):
        play_all(range(5, NUM_QUICK))


def play_all(seeds: range) -> None:
    """The first ones are those that find nothing."""
    for seed in seeds:
        Simulation(seed).run(NUM_ACTIONS)


def common_hashes(left: BlockChain, right: BlockChain) -> list[bytes]:
    return [one for one, other in zip(left.hashes, right.hashes, strict=False) if one == other]


def test_a_seed_always_plays_the_same_run() -> None:
    assert Simulation(7).run(NUM_ACTIONS) == played(7)


def test_runs_have_the_lives_that_went_wrong_once() -> None:
    """Restored and left before computing; preempted while others wait for what they compute; drafts of each kind; rows
    behind a prompt; images, also one that cannot be prepared."""
    counts = sum((played(seed) for seed in range(16, 32)), Counter[str]())
    drafted = ("accepted ngram", "accepted mtp", "accepted prediction", "rejected")
    others = ("followed", "tokens taken over", "broken images", "lookups checked")
    assert all(counts[kind] for kind in ("left restored", "preempted", "rows", *others, *drafted))
