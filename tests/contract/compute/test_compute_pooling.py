"""The compute port's contract on vectors and scores: of each text by itself, whatever is computed beside it."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.fake.engine import FakeEngine
from adapters.fake.options import LAYOUTS, FakeOptions
from application.ports.compute import DecodeStart, LoadedModel
from domain.errors import ComputeFailed
from domain.ids import ModelId, SequenceId
from domain.models.capability import Pooling
from domain.models.model_card import LoadOptions, ModelSource
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.contract_models import GREEDY, PROMPT, step
from tests.support.mlx.tiny_models import tiny_model
from tests.support.stores.state_replay import new_id, prompt_of, whole_state

VECTORS, SCORES = Pooling(), Pooling(score_ids=(7, 11))
LENGTHS = (1, 45, 13, 2, 45, 30)
ROWS = [prompt_of(length, 5 + at, vocab_size=250) for at, length in enumerate(LENGTHS)]
FAKES = ("attention", "everything")
TINY = ("llama", "gemma3_text", "gemma2", "deepseek_v3", "llama4", "falcon_h1", "qwen3_next", "rwkv7")


@pytest.fixture(scope="module", params=[*(f"fake-{one}" for one in FAKES), *TINY])
def model(request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    name = str(request.param)
    if name.startswith("fake-"):
        options = FakeOptions(LAYOUTS[name.removeprefix("fake-")])
        yield finish_load(FakeEngine(default=options).load(ModelSource(ModelId(name), "fake:toy"), LoadOptions()))
    else:
        yield tiny_model(name)


def pooled(
    model: LoadedModel, rows: Sequence[Sequence[int]], pooling: Pooling = VECTORS, prompt: Sequence[int] = ()
) -> NDArray[np.float32]:
    """One row a text, behind a prompt in two chunks."""
    id = new_id()
    model.open(id)
    for chunk in (prompt[:32], prompt[32:]):
        if chunk:
            model.prefill(id, chunk)
    found = model.pool(id, rows, pooling)
    model.close([id])
    return np.stack([np.frombuffer(row, "<f4") for row in found])


@pytest.mark.parametrize("pooling", [VECTORS, SCORES])
@pytest.mark.exact
def test_neighbours_and_order_change_no_result(model: LoadedModel, pooling: Pooling) -> None:
    alone = np.concatenate([pooled(model, [row], pooling) for row in ROWS])
    assert alone.shape[0] == len(ROWS)
    assert (alone.shape[1] > 1) == (pooling is VECTORS)
    np.testing.assert_allclose(pooled(model, ROWS, pooling), alone, atol=1e-5)
    np.testing.assert_allclose(pooled(model, ROWS[::-1], pooling), alone[::-1], atol=1e-5)
    assert np.ptp(alone, axis=0).max() > 1e-3  # the texts differ


@pytest.mark.parametrize("pooling", [VECTORS, SCORES])
@pytest.mark.parametrize("num_prompt", [1, 70])
@pytest.mark.exact
def test_a_text_behind_a_prompt_is_the_whole_text(model: LoadedModel, pooling: Pooling, num_prompt: int) -> None:
    prompt = PROMPT[:num_prompt]
    whole = pooled(model, [(*prompt, *row) for row in ROWS], pooling)
    np.testing.assert_allclose(pooled(model, ROWS, pooling, prompt), whole, atol=1e-5)


def test_the_state_goes_on_as_if_nothing_was_pooled(model: LoadedModel) -> None:
    ids = [new_id(), new_id()]
    answers: list[list[int]] = []
    for id in ids:
        model.open(id)
        model.prefill(id, PROMPT[:70])
        if id == ids[0]:
            before = whole_state(model, id)
            model.pool(id, ROWS, VECTORS)
            assert model.position(id) == 70
            assert whole_state(model, id) == before
        model.start_decode(id, PROMPT[70:], DecodeStart(PROMPT, GREEDY, seed=1))
        answers.append([step(model, id).token_ids[0] for _ in range(5)])
    model.close(ids)
    assert answers[0] == answers[1]


def test_shorter_vectors_are_the_first_numbers(model: LoadedModel) -> None:
    cut = pooled(model, ROWS, Pooling(dimensions=4))
    assert cut.shape == (len(ROWS), 4)
    first = pooled(model, ROWS)[:, :4]
    if type(model).__name__ != "FakeModel":  # toy vectors have no length
        np.testing.assert_allclose(cut, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, atol=1e-6)


def test_scores_are_probabilities(model: LoadedModel) -> None:
    scores = pooled(model, ROWS, SCORES)
    assert ((scores > 0) & (scores < 1)).all()


def refuses(model: LoadedModel, rows: Sequence[Sequence[int]]) -> str:
    """The message of the failure, which closes the sequence."""
    id: SequenceId = new_id()
    model.open(id)
    with pytest.raises(ComputeFailed) as failed:
        model.pool(id, rows, VECTORS)
    assert id not in model.open_ids()
    return failed.value.message


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    assert "token ids must be in" in refuses(tiny_model("llama"), [(1, 256)])


@pytest.mark.exact
def test_a_mean_is_that_of_all_tokens_of_the_row() -> None:
    tiny = tiny_model("llama")
    found = pooled(tiny, ROWS, Pooling(is_mean=True, is_normalized=False))
    steps = [pooled(tiny, [ROWS[1][: end + 1]], Pooling(is_normalized=False)) for end in range(len(ROWS[1]))]
    np.testing.assert_allclose(found[1], np.concatenate(steps).mean(axis=0), atol=1e-5)
