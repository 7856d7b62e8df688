"""The two sides over a channel that breaks at any message: whoever was open goes on as if nothing had happened.

Nothing can overtake anything on a socket: what can happen is that it ends, and when.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from random import Random
from typing import Any

import pytest

from adapters.engine_process.engine import EngineProcess
from adapters.system.clock import SystemClock
from application.events import EngineRestarted, ModelLoaded
from application.ports.engine import Ended, Tokens
from application.services.text_side.revived_engine import RevivedEngine
from domain.ids import RequestId
from domain.model_card import LoadOptions
from domain.reasoning_budget import ReasoningBudget, ReasoningMarks
from domain.request import FinishReason
from domain.sampling import SamplingParams
from domain.stream import Admitted, PrefillProgress, PromptLogprobs
from tests.support.dying_channel import Fuse
from tests.support.effort import scaled
from tests.support.engine_client import MODEL, EngineClient, hosted_toy, source
from tests.support.hosted_child import HostedChild
from tests.support.patience import PATIENCE_S

DRAWN = SamplingParams(temperature=1.0)
WORN = SamplingParams(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.6, num_logprobs=2)
STREAMS: dict[str, dict[str, Any]] = {
    "greedy": {"text": "one prompt, " * 9, "num_tokens": 30},
    "again": {"text": "one prompt, " * 9, "num_tokens": 12},
    "drawn": {"text": "another one", "num_tokens": 25, "sampling": DRAWN, "seed": 3},
    "worn": {"text": "words, words, " * 4, "num_tokens": 20, "sampling": WORN, "seed": 5},
    "choices": {"text": "what then? " * 8, "num_tokens": 9, "sampling": DRAWN, "seed": 7, "num_choices": 3},
    "scored": {"text": "how likely is this? " * 6, "num_tokens": 3, "num_prompt_logprobs": 2},
    "short": {"text": "x", "num_tokens": 1},
    "thinking": {
        "text": "think " * 7,
        "num_tokens": 16,
        "reasoning_budget": ReasoningBudget(5, ReasoningMarks((120,), (60, 61, 62), is_open=True)),
    },
}
NUM_CHOICES = {id: asked.get("num_choices", 1) for id, asked in STREAMS.items()}
ORDER = [Admitted, PromptLogprobs | PrefillProgress, Tokens, Ended]


async def at_once(_seconds: float) -> None:
    await asyncio.sleep(0)


def play(fuses: Sequence[int | None], during: Callable[[EngineClient], None] = lambda _client: None) -> EngineClient:
    """All streams at once; one fuse for each life of the engine, and no end of lives without one."""
    kept: list[EngineClient] = []
    lives = chain(map(Fuse, fuses), (Fuse(None) for _ in repeat(0)))

    async def run() -> None:
        clock = SystemClock()
        engine = RevivedEngine(
            lambda lost: EngineProcess(HostedChild(hosted_toy, next(lives).opens), b"", clock, lost=lost),
            clock,
            sleep=at_once,
        )
        client = EngineClient(engine)
        kept.append(client)
        engine.start(client.receive)
        try:
            await engine.load(source(MODEL), LoadOptions())
            for id, asked in STREAMS.items():
                client.submit(id, **asked)
            during(client)
            for id, number in NUM_CHOICES.items():
                for choice in range(number):
                    await client.end(id, choice)
            await client.until(lambda: engine.status().is_alive and not engine.status().fault, "an engine")
        finally:
            assert await engine.stop(PATIENCE_S)

    asyncio.run(run())
    return kept[0]


@pytest.fixture(scope="module")
def calm() -> EngineClient:
    return play(())


def tokens(client: EngineClient, id: str, choice: int) -> list[int]:
    return [token for item in client.items(id, choice) if isinstance(item, Tokens) for token in item.token_ids]


def scores(client: EngineClient, id: str) -> list[Any]:
    return [score for item in client.items(id) if isinstance(item, PromptLogprobs) for score in item.scores]


def end_of(client: EngineClient, id: str, choice: int) -> Ended:
    (end,) = [item for item in client.items(id, choice) if isinstance(item, Ended)]
    return end


def check_told(client: EngineClient) -> None:
    """Of every choice: in order, nothing twice; and each place in the queue is given back once."""
    for id, number in NUM_CHOICES.items():
        for choice in range(number):
            items = client.items(id, choice)
            assert sum(isinstance(item, Admitted) for item in items) <= 1
            done = [item.num_done for item in items if isinstance(item, PrefillProgress)]
            assert done == sorted(set(done))
            places = [next(at for at, kind in enumerate(ORDER) if isinstance(item, kind)) for item in items]
            assert places == sorted(places)
            assert isinstance(items[-1], Ended)
    assert client.num_left_queue == sum(NUM_CHOICES.values())


@pytest.mark.parametrize("seed", range(scaled(24)))
def test_one_loss_at_any_message_is_a_pause(calm: EngineClient, seed: int) -> None:
    draw = Random(seed)
    disturbed = play([draw.randrange(1, 70)])
    check_told(disturbed)
    for id, number in NUM_CHOICES.items():
        for choice in range(number):
            assert tokens(disturbed, id, choice) == tokens(calm, id, choice), (id, choice)
            end, expected = end_of(disturbed, id, choice), end_of(calm, id, choice)
            assert (end.reason, end.error, end.usage.prompt_tokens) == (
                expected.reason,
                None,
                expected.usage.prompt_tokens,
            )
            assert end.usage.completion_tokens == expected.usage.completion_tokens
    assert scores(disturbed, "scored") == scores(calm, "scored")
    num_restarts = sum(isinstance(event, EngineRestarted) for event in disturbed.events)
    assert sum(isinstance(event, ModelLoaded) for event in disturbed.events) >= 1
    assert num_restarts <= 1


@pytest.mark.parametrize("seed", range(scaled(8)))
def test_who_is_there_at_two_losses_ends_with_an_error_of_its_own(calm: EngineClient, seed: int) -> None:
    draw = Random(seed)
    disturbed = play([draw.randrange(20, 60), draw.randrange(6, 50)])
    check_told(disturbed)
    for id, number in NUM_CHOICES.items():
        for choice in range(number):
            end, expected = end_of(disturbed, id, choice), tokens(calm, id, choice)
            found = tokens(disturbed, id, choice)
            if end.error is None:
                assert found == expected
            else:
                assert end.error.code == "engine_lost"
                assert found == expected[: len(found)]
                assert end.usage.completion_tokens == len(found)


@pytest.mark.parametrize("seed", range(scaled(6)))
def test_who_is_cancelled_around_a_loss_ends_once(calm: EngineClient, seed: int) -> None:
    draw = Random(seed)
    victims = draw.sample(sorted(STREAMS), 4)

    def cancel(client: EngineClient) -> None:
        loop = asyncio.get_running_loop()
        for id in victims:
            loop.call_later(draw.random() * 0.05, client.engine.cancel, RequestId(id))

    disturbed = play([draw.randrange(12, 60)], cancel)
    check_told(disturbed)
    for id, number in NUM_CHOICES.items():
        for choice in range(number):
            end, found, expected = (
                end_of(disturbed, id, choice),
                tokens(disturbed, id, choice),
                tokens(calm, id, choice),
            )
            assert end.error is None
            assert found == expected[: len(found)]
            if end.reason is not FinishReason.CANCELLED:
                assert found == expected
            else:
                assert id in victims
