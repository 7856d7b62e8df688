"""What can be served here: loaded models, and those that would load on first use."""

from dataclasses import dataclass

from application.ports.model_repository import ModelRepository
from application.ports.tokenizer import Tokenizer
from application.services.text_side.models.model_pool import ModelPool
from application.services.text_side.models.served_model import ModelStanding, ServedModel
from domain.ids import ModelId
from domain.models.model_card import ModelDescription, ModelSource
from domain.request.sampling import SamplingDefaults


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """`description` and `tokenizer` are None until the model is loaded. `reuse_note`: why its prompts are never reused,
    empty when they are or when it is not loaded. `sampling`: what requests have that do not say, once it is loaded."""

    source: ModelSource
    description: ModelDescription | None
    reuse_note: str = ""
    tokenizer: Tokenizer | None = None
    standing: ModelStanding = ModelStanding()
    sampling: SamplingDefaults = SamplingDefaults()

    @property
    def num_bytes(self) -> int:
        """Of its weights: as they are loaded, or else as they lie in its files."""
        return self.source.file_bytes if self.description is None else self.description.weight_bytes


class ListModels:
    def __init__(self, repository: ModelRepository, pool: ModelPool) -> None:
        self._repository = repository
        self._pool = pool

    async def all(self) -> list[ModelEntry]:
        """Ordered by id."""
        loaded = {served.source.id: served for served in self._pool.loaded()}
        sources = {source.id: source for source in await self._pool.workers.run(self._repository.list)}
        sources.update({id: served.source for id, served in loaded.items()})
        return [self._entry(sources[id], loaded.get(id)) for id in sorted(sources)]

    async def one(self, id: ModelId) -> ModelEntry | None:
        return next((entry for entry in await self.all() if entry.source.id == id), None)

    def _entry(self, source: ModelSource, served: ServedModel | None) -> ModelEntry:
        standing = self._pool.standing(source.id)
        if served is None:
            return ModelEntry(source, None, standing=standing)
        return ModelEntry(source, served.description, served.reuse_note, served.tokenizer, standing, served.sampling)
