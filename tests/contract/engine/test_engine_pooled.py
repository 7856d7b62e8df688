"""The engine port's contract on vectors and scores: a prompt like any other, and one value a row."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from adapters.fake.model import FakeModel
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from application.ports.engine import Ended, Engine
from domain.ids import SequenceId
from domain.models.capability import Pooling
from domain.models.model_card import ModelSource
from domain.request.request import FinishReason
from domain.request.stream import Admitted, Pooled, PrefillProgress
from tests.support.engines.engine_client import ENGINES, MODEL, EngineClient, with_engine
from tests.support.engines.process.all_streams import EMBED, values

Run: TypeAlias = Callable[..., None]
PROMPT = "the question that all documents are to answer, "
ROWS = tuple(FakeTokenizer().encode(text).token_ids for text in ("a " * 30, "the whole of it", "a bird", "x"))
NUM_TOKENS = len(PROMPT) + sum(map(len, ROWS))


@pytest.fixture(params=ENGINES.values(), ids=ENGINES)
def run(request: pytest.FixtureRequest) -> Run:
    make: Callable[[], Engine] = request.param
    return lambda work, *models: with_engine(make, work, *models)


def expected(pooling: Pooling) -> list[bytes]:
    """Returns the values of each whole text by itself."""
    model = FakeModel(ModelSource(MODEL, "nowhere"), FakeOptions(eos_every=0))
    model.open(SequenceId(0))
    texts = [[*FakeTokenizer().encode(PROMPT).token_ids, *row] for row in ROWS]
    return [value for text in texts for value in model.pool(SequenceId(0), [text], pooling)]


@pytest.mark.parametrize("pooling", [EMBED, Pooling(dimensions=2), Pooling(score_ids=(1, 2))])
def test_each_row_has_the_value_of_its_whole_text(run: Run, pooling: Pooling) -> None:
    async def work(client: EngineClient) -> None:
        client.submit("a", PROMPT + "a", 0, pooling=pooling, rows=ROWS)
        end = await client.end("a")
        kinds = list(dict.fromkeys(type(item) for item in client.items("a")))
        assert kinds == [Admitted, PrefillProgress, Pooled, Ended]
        assert values(client, "a") == expected(pooling)
        assert (end.reason, end.usage.prompt_tokens, end.usage.completion_tokens) == (FinishReason.STOP, NUM_TOKENS, 0)

    run(work)
