"""Streams of every kind over an engine that may be lost: what they ask for, and what they must have been told."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest

from adapters.fake.vision import toy_image
from adapters.system.clock import SystemClock
from application.ports.engine import Ended, MakeInstance, Tokens
from application.services.text_side.supervision.engine_supervisor import GIVE_UP_S, EngineSupervisor
from domain.id_row import IdRow
from domain.models.capability import Pooling
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.reasoning_budget import ReasoningBudget, ReasoningMarks
from domain.request.sampling import SamplingParams
from domain.request.stream import Admitted, Pooled, PrefillProgress, PromptLogprobs
from tests.support.engines.engine_client import MODEL, EngineClient, source
from tests.support.engines.toy_prompts import text_of
from tests.support.patience import PATIENCE_S

DRAWN = SamplingParams(temperature=1.0)
WORN = SamplingParams(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.6, num_logprobs=2)
CAT, DOG, OWL = (toy_image(5, 8, content) for content in ("cat", "dog", "owl"))
EMBED = Pooling()
ROWS = tuple(
    sorted((IdRow(range(start, start + 5 + start % 30)) for start in range(7, 200, 11)), key=len, reverse=True)
)
STREAMS: dict[str, dict[str, Any]] = {
    "rows": {"text": "the beginning, " * 5, "num_tokens": 0, "pooling": EMBED, "rows": ROWS},
    "greedy": {"text": "one prompt, " * 9, "num_tokens": 30},
    "again": {"text": "one prompt, " * 9, "num_tokens": 12},
    "drawn": {"text": "another one", "num_tokens": 25, "sampling": DRAWN, "seed": 3},
    "worn": {"text": "words, words, " * 4, "num_tokens": 20, "sampling": WORN, "seed": 5},
    "choices": {"text": "what then? " * 8, "num_tokens": 9, "sampling": DRAWN, "seed": 7, "num_choices": 3},
    "scored": {"text": "how likely is this? " * 6, "num_tokens": 3, "num_prompt_logprobs": 2},
    "short": {"text": "x", "num_tokens": 1},
    "seeing": {"text": ("look: ", CAT, " and at ", DOG, " once more"), "num_tokens": 20, "sampling": DRAWN, "seed": 4},
    "seen": {"text": ("look: ", CAT, " and at ", OWL, ": which?"), "num_tokens": 12, "num_choices": 2},
    "thinking": {
        "text": "think " * 7,
        "num_tokens": 16,
        "reasoning_budget": ReasoningBudget(5, ReasoningMarks((120,), (60, 61, 62), is_open=True)),
    },
}
NUM_CHOICES = {id: asked.get("num_choices", 1) for id, asked in STREAMS.items()}
ORDER = [Admitted, PromptLogprobs | PrefillProgress | Pooled, Tokens, Ended]


async def at_once(seconds: float) -> None:
    """No pause before the next engine, and no end of patience."""
    if seconds == GIVE_UP_S:
        await asyncio.Event().wait()


async def nothing(_client: EngineClient) -> None:
    """Nobody disturbs them."""


def play(
    make: MakeInstance,
    during: Callable[[EngineClient], Awaitable[None]] = nothing,
    model: ModelSource | None = None,
    salt: str = "",
) -> EngineClient:
    """All streams at once, to their ends. `model`: the toy one by default."""
    kept: list[EngineClient] = []

    async def run() -> None:
        engine = EngineSupervisor(make, SystemClock(), sleep=at_once)
        client = EngineClient(engine)
        kept.append(client)
        engine.start(client.receive)
        try:
            found = await engine.load(model or source(MODEL), LoadOptions())
            for id, asked in STREAMS.items():
                if model is not None and model.path != source(MODEL).path:  # it does not see
                    asked = asked | {"text": text_of(asked["text"])}
                client.submit(id, **asked, model=found.description.id, cache_salt=salt)
            await during(client)
            for id, number in NUM_CHOICES.items():
                for choice in range(number):
                    await client.end(id, choice)
            await client.until(lambda: engine.status().is_alive and not engine.status().fault, "an engine")
        finally:
            assert await engine.stop(PATIENCE_S)

    asyncio.run(run())
    return kept[0]


def tokens(client: EngineClient, id: str, choice: int) -> list[int]:
    return [token for item in client.items(id, choice) if isinstance(item, Tokens) for token in item.token_ids]


def scores(client: EngineClient, id: str) -> list[Any]:
    return [score for item in client.items(id) if isinstance(item, PromptLogprobs) for score in item.scores]


def values(client: EngineClient, id: str) -> list[bytes]:
    return [value for item in client.items(id) if isinstance(item, Pooled) for value in item.values]


def assert_near(found: Sequence[bytes], expected: Sequence[bytes]) -> None:
    """Asserts that the values of all rows are equal but for rounding: rows that were left have other batches."""
    numbers, others = (np.frombuffer(b"".join(values), "<f4") for values in (found, expected))
    assert numbers == pytest.approx(others, abs=1e-5)


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


def check_same(disturbed: EngineClient, calm: EngineClient) -> None:
    """Each choice has come to the same end by the same tokens."""
    check_told(disturbed)
    assert len(values(calm, "rows")) == len(ROWS)
    for id, number in NUM_CHOICES.items():
        assert_near(values(disturbed, id), values(calm, id))
        for choice in range(number):
            assert tokens(disturbed, id, choice) == tokens(calm, id, choice), (id, choice)
            end, expected = end_of(disturbed, id, choice), end_of(calm, id, choice)
            assert (end.reason, end.error) == (expected.reason, None)
            assert end.usage.prompt_tokens == expected.usage.prompt_tokens
            assert end.usage.completion_tokens == expected.usage.completion_tokens
