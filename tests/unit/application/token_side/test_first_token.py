"""The first token leaves before the end of the prompt is captured, where that can still be cut."""

import pytest

from adapters.fake.options import LAYOUTS, FakeOptions
from application.events import FirstToken, PrefixMatched, StateCaptured
from domain.ids import RequestId
from domain.models.state_layout import StateLayout
from tests.support.engines.stepped_engine import SteppedEngine

PROMPT = tuple(range(300, 345))
"""A block and a half of these behind the last line of the grid."""


def engine_of(layout: StateLayout) -> SteppedEngine:
    return SteppedEngine(FakeOptions(layout, eos_every=0, vocab_size=4_000))


def num_reused(engine: SteppedEngine) -> int:
    return sum(engine.events(PrefixMatched)[-1].reused.values())


def test_the_first_token_is_delivered_before_the_end_of_a_prompt_is_captured() -> None:
    engine = engine_of(LAYOUTS["attention"])
    engine.submit("turn", PROMPT)
    while not engine.tokens("turn"):
        engine.step()
    with_token = next(batch for batch in engine.batches if any(isinstance(one, FirstToken) for one in batch.events))
    later = engine.batches[engine.batches.index(with_token) + 1 :]
    captured = [event for batch in later for event in batch.events if isinstance(event, StateCaptured)]
    assert sum(event.num_snapshots for event in captured) == 1
    assert not any(isinstance(event, StateCaptured) for event in with_token.events)


@pytest.mark.parametrize("layout", sorted(LAYOUTS.keys() - {"unsupported"}))
@pytest.mark.parametrize("num_steps", range(4))
def test_a_turn_that_is_cancelled_around_its_first_token_leaves_its_prompt(layout: str, num_steps: int) -> None:
    engine = engine_of(LAYOUTS[layout])
    engine.submit("turn", PROMPT)
    while not engine.model.open_ids() or engine.model.position(max(engine.model.open_ids())) < len(PROMPT) - 1:
        engine.step()
    engine.step(num_steps)
    engine.loop.cancel(RequestId("turn"))
    engine.submit("repeat", PROMPT)
    engine.run()
    assert num_reused(engine) == len(PROMPT) - 1


@pytest.mark.parametrize("num_tokens", [0, 1, 2])
def test_an_exact_repeat_computes_one_token_after_any_short_answer(num_tokens: int) -> None:
    engine = engine_of(LAYOUTS["attention"])
    engine.submit("turn", PROMPT, num_tokens)
    engine.run()
    engine.submit("repeat", PROMPT)
    engine.run()
    assert num_reused(engine) == len(PROMPT) - 1
