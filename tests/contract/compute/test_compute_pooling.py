"""The compute port's contract on vectors and scores: of each text by itself, whatever is computed beside it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.fake.engine import FakeEngine
from adapters.fake.options import LAYOUTS, FakeOptions
from application.ports.compute import DecodeStart, LoadedModel
from domain.errors import ComputeFailed
from domain.ids import ModelId, SequenceId
from domain.models.capability import Capability, PoolingMethod, PoolingProfile
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.pooling import Pooling
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.contract_models import GREEDY, PROMPT, step
from tests.support.mlx.tiny_heads import head_folder, load_head
from tests.support.mlx.tiny_models import tiny_model
from tests.support.stores.state_replay import new_id, prompt_of, whole_state

PROFILE = PoolingProfile(dimensions=(4, 64), score_ids=(7, 11))
VECTORS, SCORES = Pooling(Capability.EMBED), Pooling(Capability.SCORE)
LENGTHS = (1, 45, 13, 2, 45, 30)
ROWS = [prompt_of(length, 5 + at, vocab_size=250) for at, length in enumerate(LENGTHS)]
SIZE = 64

FAKES = ("attention", "everything")
TINY = ("llama", "gemma3_text", "gemma2", "deepseek_v3", "llama4", "falcon_h1", "qwen3_next", "rwkv7")
HEADED = ("mimo", "qwen3_5")


@pytest.fixture(scope="module", params=[*(f"fake-{one}" for one in FAKES), *TINY, *(f"{one}+head" for one in HEADED)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    name = str(request.param)
    if name.startswith("fake-"):
        options = FakeOptions(LAYOUTS[name.removeprefix("fake-")], embedding_size=SIZE)
        yield finish_load(FakeEngine(default=options).load(ModelSource(ModelId(name), "fake:toy"), LoadOptions()))
    elif name.endswith("+head"):
        folder = head_folder(name.removesuffix("+head"), Path(tmp_path_factory.mktemp("headed")) / "m")
        yield load_head(folder, LoadOptions(pooling=PROFILE))
    else:
        yield tiny_model(name, pooling=PROFILE)


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
def test_neighbours_and_order_change_no_result(model: LoadedModel, pooling: Pooling) -> None:
    alone = np.concatenate([pooled(model, [row], pooling) for row in ROWS])
    assert alone.shape == (len(ROWS), SIZE if pooling is VECTORS else 1)
    np.testing.assert_allclose(pooled(model, ROWS, pooling), alone, atol=1e-5)
    np.testing.assert_allclose(pooled(model, ROWS[::-1], pooling), alone[::-1], atol=1e-5)
    assert np.ptp(alone, axis=0).max() > 1e-3  # the texts differ


@pytest.mark.parametrize("pooling", [VECTORS, SCORES])
@pytest.mark.parametrize("num_prompt", [1, 70])
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
    cut = pooled(model, ROWS, Pooling(Capability.EMBED, dimensions=8))
    assert cut.shape == (len(ROWS), 8)
    first = pooled(model, ROWS)[:, :8]
    if type(model).__name__ != "FakeModel":  # toy vectors have no length
        np.testing.assert_allclose(cut, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, atol=1e-6)


def test_scores_are_probabilities(model: LoadedModel) -> None:
    scores = pooled(model, ROWS, SCORES)
    assert ((scores > 0) & (scores < 1)).all()


def refuses(model: LoadedModel, prompt: Sequence[int], rows: Sequence[Sequence[int]], pooling: Pooling) -> str:
    """The message of the failure, which closes the sequence."""
    id: SequenceId = new_id()
    model.open(id)
    if prompt:
        model.prefill(id, prompt)
    with pytest.raises(ComputeFailed) as failed:
        model.pool(id, rows, pooling)
    assert id not in model.open_ids()
    return failed.value.message


def test_what_cannot_be_computed_is_refused() -> None:
    plain = tiny_model("llama")
    assert refuses(plain, (), ROWS, VECTORS) == "this model cannot embed"
    embeds = tiny_model("llama", pooling=PoolingProfile(PoolingMethod.MEAN))
    assert refuses(embeds, (), ROWS, SCORES) == "this model cannot score"
    assert "the whole text in one row" in refuses(embeds, PROMPT[:3], ROWS, VECTORS)
    assert "token ids must be in" in refuses(embeds, (), [(1, 256)], VECTORS)
    assert (plain.description.embedding_size, embeds.description.embedding_size) == (0, 64)
