"""Models that make vectors, and models that are not loaded at all, as they are found."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from adapters.fake.environment import FakeClock
from adapters.fake.tokenizer import FakeTokenizers
from application.live_settings import LiveSettings
from application.ports.model_repository import DownloadProgress
from application.services.text_side.models.model_finder import FoundModel, ModelFinder, accept_any_model
from application.settings import ModelSettings, Settings
from domain.errors import InvalidRequest
from domain.ids import ModelId
from domain.models.capability import Capability, ModelUse
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


def found(source: ModelSource) -> FoundModel:
    live = LiveSettings(Settings(model=ModelSettings(draft="a draft model that nothing looks for")))
    finder = ModelFinder(OneModel(source), FakeTokenizers(), live, accept_any_model, FakeClock())

    async def find() -> FoundModel:
        return await finder.find(source.id)

    return asyncio.run(find())


def test_a_model_that_embeds_is_loaded_without_drafts() -> None:
    options = found(ModelSource(ModelId("m"), "fake:m", use=ModelUse(frozenset({Capability.EMBED})))).options
    assert (options.speculation, options.draft) == (SpeculationMode.OFF, "")


def test_a_model_that_is_refused_says_why() -> None:
    with pytest.raises(InvalidRequest, match="m cannot be served: it is an encoder"):
        found(ModelSource(ModelId("m"), "fake:m", use=ModelUse(refusal="it is an encoder. Serve another one")))
