"""The options by which a model that makes vectors or scores is loaded, and models that are not loaded at all."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from adapters.fake.environment import FakeClock
from adapters.fake.tokenizer import FakeTokenizer, FakeTokenizers
from application.ports.model_repository import DownloadProgress
from application.services.text_side.models.model_finder import FoundModel, ModelFinder, accept_any_model
from application.settings import ModelSettings
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from domain.models.capability import Capability, PoolingProfile
from domain.models.model_card import ModelSource
from domain.speculation.drafter import SpeculationMode


class OneModel:
    """A ModelRepository of one model."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source

    def list(self) -> Sequence[ModelSource]:
        return [self._source]

    def find(self, id: ModelId) -> ModelSource | None:
        return self._source

    def fetch(self, id: ModelId, on_progress: Callable[[DownloadProgress], None]) -> ModelSource:
        return self._source


class Wordless(FakeTokenizer):
    """A tokenizer without the words of a reranker."""

    @property
    def score_ids(self) -> None:
        return None


def found(source: ModelSource, tokenizer: FakeTokenizer | None = None) -> FoundModel:
    settings = ModelSettings(draft="a draft model that nothing looks for")
    tokenizers = FakeTokenizers(tokenizer)
    finder = ModelFinder(OneModel(source), tokenizers, settings, {}, accept_any_model, FakeClock())

    async def find() -> FoundModel:
        return await finder.find(source.id)

    return asyncio.run(find())


def a_model(task: Capability, pooling: PoolingProfile | None) -> ModelSource:
    return ModelSource(ModelId("m"), "fake:m", capabilities=frozenset({task}), pooling=pooling)


def test_a_model_that_embeds_is_loaded_with_its_profile_and_without_drafts() -> None:
    profile = PoolingProfile(dimensions=(32, 64))
    options = found(a_model(Capability.EMBED, profile)).options
    assert (options.pooling, options.speculation, options.draft) == (profile, SpeculationMode.OFF, "")


def test_the_tokens_of_a_reranker_come_from_its_tokenizer() -> None:
    options = found(a_model(Capability.SCORE, PoolingProfile())).options
    assert options.pooling == PoolingProfile(score_ids=(ord("y"), ord("n")))
    with pytest.raises(ModelLoadFailed, match="no single tokens for yes and no"):
        found(a_model(Capability.SCORE, PoolingProfile()), Wordless())


def test_a_model_that_is_refused_says_why() -> None:
    with pytest.raises(ModelLoadFailed, match="m cannot be served: it is an encoder"):
        found(ModelSource(ModelId("m"), "fake:m", refusal="it is an encoder. Serve another one"))
