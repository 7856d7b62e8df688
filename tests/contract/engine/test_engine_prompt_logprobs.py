"""The engine port's contract on log probabilities of a prompt: computed whole, sent by the chunk, before any token."""

from collections.abc import Awaitable, Callable
from itertools import chain
from typing import TypeAlias

import pytest

from adapters.fake.tokenizer import FakeTokenizer
from application.ports.engine import Ended, Engine, Tokens
from domain.prefix.explanation import StopReason
from domain.request.request import FinishReason
from domain.request.stream import Admitted, PrefillProgress, PromptLogprobs, TokenLogprob
from tests.support.engines.engine_client import (
    ENGINES,
    EngineClient,
    with_engine,
)

Run: TypeAlias = Callable[[Callable[[EngineClient], Awaitable[None]]], None]
TEXT = "the prompt of an evaluation, " * 4
PROMPT_IDS = FakeTokenizer().encode(TEXT).token_ids


@pytest.fixture(params=ENGINES.values(), ids=ENGINES)
def run(request: pytest.FixtureRequest) -> Run:
    make: Callable[[], Engine] = request.param
    return lambda work: with_engine(make, work)


def scores(client: EngineClient, id: str, choice: int = 0) -> list[TokenLogprob | None]:
    told = [item.scores for item in client.items(id, choice) if isinstance(item, PromptLogprobs)]
    return list(chain.from_iterable(told))


def reuse(client: EngineClient, id: str, choice: int = 0) -> tuple[StopReason, int]:
    (told,) = [item.explanation for item in client.items(id, choice) if isinstance(item, Admitted)]
    return told.reason, told.stopped_at


def test_every_chunk_is_reported_before_the_first_token(run: Run) -> None:
    async def work(client: EngineClient) -> None:
        client.submit("a", TEXT, num_tokens=2, num_prompt_logprobs=3)
        client.submit("plain", "x" + TEXT, num_tokens=2)
        assert (await client.end("a")).usage.completion_tokens == 2
        kinds = [type(item) for item in client.items("a")]
        assert kinds == [Admitted, *[PromptLogprobs, PrefillProgress] * 4, Tokens, Tokens, Ended]
        found = scores(client, "a")
        assert [score and score.token_id for score in found] == [None, *PROMPT_IDS[1:]]
        assert {len(score.top) for score in found if score} == {3}
        assert all(score.rank and score.rank >= 1 for score in found if score)
        await client.end("plain")
        assert not scores(client, "plain")

    run(work)


@pytest.mark.parametrize("text", [TEXT, "x"], ids=["long", "one-token"])
def test_without_a_token_wanted_it_ends_with_its_prompt(run: Run, text: str) -> None:
    async def work(client: EngineClient) -> None:
        client.submit("a", text, num_tokens=0, num_prompt_logprobs=1)
        end = await client.end("a")
        assert (end.reason, end.error, end.usage.completion_tokens) == (FinishReason.LENGTH, None, 0)
        assert [score and score.token_id for score in scores(client, "a")] == [None, *map(ord, text[1:])]
        client.submit("plain", text, num_tokens=1)
        assert (await client.end("plain")).usage.reused_tokens == len(text) - 1
        assert not client.engine.status().is_busy

    run(work)


@pytest.mark.parametrize("num_tokens", [0, 2])
def test_of_several_choices_the_first_is_reported_and_the_others_go_on_from_its_state(
    run: Run, num_tokens: int
) -> None:
    async def work(client: EngineClient) -> None:
        client.submit("a", TEXT, num_tokens=num_tokens, num_choices=5, num_prompt_logprobs=1)
        ends = [await client.end("a", choice) for choice in range(5)]
        assert [end.usage.completion_tokens for end in ends] == [num_tokens] * 5
        assert [len(scores(client, "a", choice)) for choice in range(5)] == [len(PROMPT_IDS), 0, 0, 0, 0]
        assert reuse(client, "a") == (StopReason.SCORED, 0)
        assert all(reuse(client, "a", choice)[1] > 0 for choice in range(1, 5))
        told = [(of, type(item)) for batch in client.batches for _, of, item in batch.items]
        last_score = max(at for at, entry in enumerate(told) if entry == (0, PromptLogprobs))
        assert all(at > last_score for at, (_, kind) in enumerate(told) if kind is Tokens)

    run(work)
