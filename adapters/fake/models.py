"""A model repository that has the names it was given and no files."""

from collections.abc import Callable, Mapping, Sequence

from application.ports.model_repository import DownloadProgress
from domain.errors import ModelLoadFailed, ModelNotFound
from domain.ids import ModelId
from domain.model_card import ModelSource

DEFAULT_NAMES = ("fake-attention", "fake-hybrid", "fake-windowed")


class FakeModels:
    """A ModelRepository. `names` are here; `remote` can be fetched, in two steps of the given size in bytes.

    `broken` names are found, but fetching them raises ModelLoadFailed.
    """

    def __init__(
        self,
        names: Sequence[str] = DEFAULT_NAMES,
        remote: Mapping[str, int] | None = None,
        broken: Sequence[str] = (),
    ) -> None:
        self._here = {ModelId(name): self._source(name) for name in names}
        self._remote = {ModelId(name): size for name, size in (remote or {}).items()}
        self._broken = frozenset(ModelId(name) for name in broken)

    def list(self) -> Sequence[ModelSource]:
        return [self._here[id] for id in sorted(self._here)]

    def find(self, id: ModelId) -> ModelSource | None:
        return self._here.get(id)

    def fetch(self, id: ModelId, on_progress: Callable[[DownloadProgress], None]) -> ModelSource:
        if id in self._broken:
            raise ModelLoadFailed(f"{id} cannot be fetched")
        if id not in self._here:
            if id not in self._remote:
                raise ModelNotFound(f"no model named {id}")
            total = self._remote[id]
            on_progress(DownloadProgress(total // 2, total))
            on_progress(DownloadProgress(total, total))
            self._here[id] = self._source(id)
        return self._here[id]

    @staticmethod
    def _source(name: str) -> ModelSource:
        return ModelSource(ModelId(name), f"fake:{name}", created_s=1_700_000_000, owned_by="fake")


__all__ = ("DEFAULT_NAMES", "FakeModels")
