"""A model that embeds or scores, found and loaded as a server does, and called as the engine does."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adapters.huggingface.repository import HuggingFaceRepository
from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading.plan import check_source
from adapters.mlx.model import MlxModel
from adapters.tokenizers.loader import HfTokenizerLoader
from application.ports.tokenizer import Tokenizer
from domain.ids import ModelId, SequenceId
from domain.models.capability import Pooling
from domain.models.model_card import LoadOptions, ModelSource
from tests.support.engines.finish_load import finish_load

ID = SequenceId(1)
CHUNK = 64

Numbers = NDArray[np.float32]


def source_of(folder: Path) -> ModelSource:
    found = HuggingFaceRepository([], paths=[str(folder)], cache=folder / "no cache").find(ModelId(str(folder)))
    assert found is not None
    return found


def tokenizer_of(folder: Path) -> Tokenizer:
    return HfTokenizerLoader().load(source_of(folder))


class Loaded:
    """`preview`: of its files."""

    def __init__(self, folder: Path, options: LoadOptions = LoadOptions()) -> None:  # noqa: B008 - it is immutable
        self.source = found = source_of(folder)
        self.tokenizer = tokenizer_of(folder)
        self.preview = check_source(found, options)
        self.model = finish_load(MlxEngine().load(found, options))
        assert isinstance(self.model, MlxModel)

    def pool(self, prompt: list[int], rows: list[list[int]], pooling: Pooling) -> list[Numbers]:
        self.model.open(ID)
        for start in range(0, len(prompt), CHUNK):
            self.model.prefill(ID, prompt[start : start + CHUNK])
        found = self.model.pool(ID, rows, pooling)
        self.model.close([ID])
        return [np.frombuffer(row, "<f4") for row in found]

    def ids(self, text: str) -> list[int]:
        start, end = self.tokenizer.ends
        return [*start, *self.tokenizer.encode_part(text), *end]

    def embed(self, text: str) -> Numbers:
        """A mean, and an encoder's vector, is of the whole text in one pass; the last token is computed behind the
        others."""
        ids, pooling = self.ids(text), self.source.use.pooling
        cut = 0 if pooling.is_mean or self.source.use.is_encoder else len(ids) - 1
        (found,) = self.pool(ids[:cut], [ids[cut:]], pooling)
        return found
