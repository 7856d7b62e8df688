"""Models with an adapter: names of the configuration's own for a model's files with a LoRA adapter laid over them.

They are found beside whatever another repository has, and win over a model of the same name there: what is set for a
name is what its clients get.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adapters.huggingface.model_folder import newest_file_s
from application.ports.model_repository import DownloadProgress, ModelRepository
from domain.ids import ModelId
from domain.models.model_card import ModelSource


@dataclass(frozen=True, slots=True)
class Adapted:
    """`base`: the model whose files these are; `adapter`: a folder."""

    base: ModelId
    adapter: str


class AdaptedModels:
    """A ModelRepository around another."""

    def __init__(self, repository: ModelRepository, adapted: Mapping[ModelId, Adapted]) -> None:
        self._repository = repository
        self._adapted = adapted

    def list(self) -> Sequence[ModelSource]:
        plain = {source.id: source for source in self._repository.list()}
        found = {id: source for id in self._adapted if (source := self.find(id)) is not None}
        return [(plain | found)[id] for id in sorted(plain | found)]

    def find(self, id: ModelId) -> ModelSource | None:
        adapted = self._adapted.get(id)
        if adapted is None:
            return self._repository.find(id)
        source = self._repository.find(adapted.base)
        return None if source is None else _over(source, id, adapted)

    def fetch(self, id: ModelId, on_progress: Callable[[DownloadProgress], None]) -> ModelSource:
        adapted = self._adapted.get(id)
        if adapted is None:
            return self._repository.fetch(id, on_progress)
        return _over(self._repository.fetch(adapted.base, on_progress), id, adapted)


def _over(source: ModelSource, id: ModelId, adapted: Adapted) -> ModelSource:
    folder = Path(adapted.adapter).expanduser()
    created_s = max(source.created_s, newest_file_s(folder))
    return replace(source, id=id, adapter=str(folder), created_s=created_s)
