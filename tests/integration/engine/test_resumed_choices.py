"""What another engine has told is not told again, and its tokens go on as if there had been one engine only."""

from typing import Any

import pytest

from adapters.fake.options import EOS_ID, LAYOUTS, FakeOptions
from application.events import DecodeStarted, FirstToken, RequestAdmitted
from application.ports.engine import Ended, EngineItem, Tokens
from application.services.text_side.supervision.open_work import Work
from domain.ids import RequestId
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.grammar import choice_grammar
from domain.request.reasoning_budget import ReasoningBudget, ReasoningMarks
from domain.request.request import choice_id
from domain.request.sampling import SamplingParams
from domain.request.stream import PromptLogprobs
from tests.support.engines.stepped_engine import MODEL, SteppedEngine
from tests.support.engines.sync_engine import submission

PROMPT = tuple(range(32, 32 + 90))
WORN = SamplingParams(temperature=1.0, repetition_penalty=1.4, presence_penalty=0.7, num_logprobs=2)
ENDS = frozenset({EOS_ID})
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "worn": {"sampling": WORN, "seed": 9},
    "kept going": {"min_tokens": 9, "ignore_eos": False, "eos_token_ids": ENDS, "num_tokens": 40},
    "grammar": {
        "grammar": choice_grammar(["a long answer, and that was it", "a long way"], "choice"),
        "eos_token_ids": ENDS,
        "ignore_eos": False,
        "num_tokens": 60,
    },
    "reasoning": {"reasoning_budget": ReasoningBudget(5, ReasoningMarks((300,), (60, 61, 62), is_open=True))},
    "choices": {"num_choices": 3, "sampling": SamplingParams(temperature=1.0)},
    "scored": {"num_prompt_logprobs": 2},
    "nothing wanted": {"num_prompt_logprobs": 1, "num_tokens": 0},
}


def told(engine: SteppedEngine, work: Work) -> list[tuple[int, EngineItem]]:
    """Everything that the engine has told so far, taken in by whoever follows it."""
    found = [(choice, item) for batch in engine.batches for _, choice, item in batch.items]
    admitted = {event.id for event in engine.events(RequestAdmitted)}
    for choice in work.choices:
        if choice_id(RequestId("a"), choice) in admitted:
            work.left_queue(choice)
    for choice, item in found:
        work.took(choice, item)
    return found


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("num_steps", [0, 1, 3, 5, 7, 11])
def test_it_goes_on_in_another_engine(asked: dict[str, Any], num_steps: int) -> None:
    options = FakeOptions(eos_every=6, vocab_size=400)
    asked = {"num_tokens": 12, **asked}
    wanted = submission("a", MODEL, EncodedPrompt.of_text(PROMPT), **asked)
    calm, first, second = (SteppedEngine(options) for _ in range(3))
    calm.loop.add(wanted)
    calm.run()
    first.loop.add(wanted)
    for _ in range(num_steps):
        if first.loop.is_busy:
            first.step()
    work = Work(wanted)
    items = told(first, work)
    if work.choices:
        second.loop.add(work.resumed())
        second.run()
        items += told(second, Work(wanted))
    for choice in range(wanted.num_choices):
        mine = [item for of, item in items if of == choice]
        theirs = calm.items("a", choice)
        assert tokens(mine) == tokens(theirs)
        assert scores(mine) == scores(theirs)
        assert [type(item) for item in mine if not isinstance(item, Tokens | PromptLogprobs)] == [
            type(item) for item in theirs if not isinstance(item, Tokens | PromptLogprobs)
        ]
        end, expected = mine[-1], theirs[-1]
        assert isinstance(end, Ended)
        assert isinstance(expected, Ended)
        assert (end.reason, end.usage.completion_tokens) == (expected.reason, expected.usage.completion_tokens)
    num_left = sum(batch.num_left_queue for engine in (first, second) for batch in engine.batches)
    assert num_left == wanted.num_choices
    for choice in range(wanted.num_choices):
        firsts = [event for engine in (first, second) for event in engine.events(FirstToken)]
        assert sum(event.id == choice_id(RequestId("a"), choice) for event in firsts) <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_goes_on(layout: str) -> None:
    options = FakeOptions(LAYOUTS[layout], runs_ahead=True, tokens_per_step=3, eos_every=0)
    wanted = submission("a", MODEL, EncodedPrompt.of_text(PROMPT), 30)
    calm, first, second = (SteppedEngine(options) for _ in range(3))
    for engine in (calm, first):
        engine.loop.add(wanted)
    calm.run()
    while not first.events(DecodeStarted):
        first.step()
    first.step(3)
    work = Work(wanted)
    items = told(first, work)
    assert tokens([item for _, item in items])
    second.loop.add(work.resumed())
    second.run()
    assert tokens([item for _, item in items]) + second.tokens("a") == calm.tokens("a")


def tokens(items: list[EngineItem]) -> list[int]:
    return [token for item in items if isinstance(item, Tokens) for token in item.token_ids]


def scores(items: list[EngineItem]) -> list[Any]:
    return [score for item in items if isinstance(item, PromptLogprobs) for score in item.scores]
