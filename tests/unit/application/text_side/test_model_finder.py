"""A model's two looks, at its files where it would run and at its tokenizer here, are taken at once."""

import asyncio
from threading import Event

import pytest

from adapters.fake.engine import FakeModels
from adapters.fake.environment import FakeClock
from adapters.fake.tokenizer import FakeTokenizers
from application.ports.model_repository import ModelCheck, ModelPreview
from application.ports.tokenizer import Tokenizer
from application.services.text_side.models.model_finder import FoundModel, ModelFinder
from application.settings import ModelSettings
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelSource
from tests.support.patience import PATIENCE_S

NAME = "fake-hybrid"


class Tokenizers(FakeTokenizers):
    """Tells when it was asked. `fails`: then it raises."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.was_asked = Event()
        self._fails = fails

    def load(self, source: ModelSource) -> Tokenizer:
        self.was_asked.set()
        if self._fails:
            raise ModelLoadFailed("no tokenizer")
        return super().load(source)


def found(tokenizers: Tokenizers, check: ModelCheck) -> FoundModel:
    async def run() -> FoundModel:
        finder = ModelFinder(FakeModels((NAME,)), tokenizers, ModelSettings(default=NAME), {}, check, FakeClock())
        try:
            return await finder.find(ModelId(NAME))
        finally:
            finder.workers.close()

    return asyncio.run(run())


def test_the_tokenizer_is_loaded_while_the_engine_has_not_answered() -> None:
    tokenizers = Tokenizers()

    def answers_late(_source: ModelSource, _options: LoadOptions) -> ModelPreview:
        assert tokenizers.was_asked.wait(PATIENCE_S)
        return ModelPreview(weight_bytes=7)

    assert found(tokenizers, answers_late).weight_bytes == 7


@pytest.mark.parametrize("tokenizer_fails", [True, False])
def test_what_is_wrong_with_the_files_is_said_first(tokenizer_fails: bool) -> None:
    def refuses(_source: ModelSource, _options: LoadOptions) -> ModelPreview:
        raise ModelLoadFailed("no weights")

    with pytest.raises(ModelLoadFailed, match="no weights"):
        found(Tokenizers(fails=tokenizer_fails), refuses)


def test_a_tokenizer_that_does_not_load_is_reported() -> None:
    with pytest.raises(ModelLoadFailed, match="no tokenizer"):
        found(Tokenizers(fails=True), lambda _source, _options: ModelPreview())
