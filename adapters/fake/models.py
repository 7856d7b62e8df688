"""A model repository that has the names it was given and no files."""

from collections.abc import Callable, Sequence

from application.ports.model_repository import DownloadProgress
from domain.errors import ModelNotFound
from domain.ids import ModelId
from domain.models.model_card import ModelSource

DEFAULT_NAMES = ("fake-attention", "fake-hybrid", "fake-windowed")


class FakeModels:
    """A ModelRepository. `names` are here; nothing else can be fetched."""

    def __init__(self, names: Sequence[str] = DEFAULT_NAMES) -> None:
        self._here = {ModelId(name): self._source(name) for name in names}

    def list(self) -> Sequence[ModelSource]:
        return [self._here[id] for id in sorted(self._here)]

    def find(self, id: ModelId) -> ModelSource | None:
        return self._here.get(id)

    def fetch(self, id: ModelId, on_progress: Callable[[DownloadProgress], None]) -> ModelSource:
        if id not in self._here:
            raise ModelNotFound(f"no model named {id}")
        return self._here[id]

    @staticmethod
    def _source(name: str) -> ModelSource:
        return ModelSource(ModelId(name), f"fake:{name}", created_s=1_700_000_000, owned_by="fake")
