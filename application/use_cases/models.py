"""The models of a server: listed with their state, loaded and pinned by hand, and their aliases."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from application.live_settings import LiveSettings
from application.ports.model_repository import ModelRepository
from application.ports.tokenizer import Tokenizer
from application.services.text_side.models.model_finder import ModelStatus, ServedModel
from application.services.text_side.models.model_pool import ModelPool
from domain.errors import ModelNotFound
from domain.ids import ModelId
from domain.models.model_card import ModelDescription, ModelSource, answering_model
from domain.models.residency import LoadRoom, Residence
from domain.printable import printable
from domain.request.request import GenerationRequest
from domain.request.sampling import SamplingDefaults


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that is served, or would be loaded on first use. `description`, `tokenizer` and `sampling` (the defaults
    of requests) are empty until it is loaded. `reuse_note`: why its prompts are never reused; empty when they are."""

    source: ModelSource
    description: ModelDescription | None
    reuse_note: str = ""
    tokenizer: Tokenizer | None = None
    status: ModelStatus = ModelStatus()
    sampling: SamplingDefaults = SamplingDefaults()

    @property
    def num_bytes(self) -> int:
        """The size of its weights: loaded ones in memory, others on disk."""
        return self.source.file_bytes if self.description is None else self.description.weight_bytes


class Models:
    """Event loop only. Loading raises as `ModelPool.acquire` does."""

    def __init__(self, pool: ModelPool, repository: ModelRepository, live: LiveSettings) -> None:
        self._pool = pool
        self._repository = repository
        self._live = live

    @property
    def room(self) -> LoadRoom:
        """The memory for weights."""
        return self._pool.room

    @property
    def free_bytes(self) -> int | None:
        """The memory that loaded models and running requests leave, without what is kept of ended ones; None: not
        bounded."""
        weights = sum(served.description.weight_bytes for served in self._pool.loaded())
        return self.room.available_bytes(weights + self.room.busy_bytes)

    async def all(self) -> list[ModelEntry]:
        """Returns all models, the default one first, the others ordered by id."""
        loaded = {served.source.id: served for served in self._pool.loaded()}
        sources = {source.id: source for source in await self._pool.workers.run(self._repository.list)}
        sources.update({id: served.source for id, served in loaded.items()})
        return [self._entry(sources[id], loaded.get(id)) for id in sorted(sources, key=self._place)]

    async def why_too_large(self, entry: ModelEntry) -> str:
        """As `ModelPool.why_too_large`."""
        return await self._pool.why_too_large(entry.source)

    async def one(self, id: ModelId) -> ModelEntry | None:
        return next((entry for entry in await self.all() if entry.source.id == id), None)

    def loaded_tokenizer(self, id: ModelId) -> Tokenizer | None:
        """Returns the tokenizer of a loaded model; None for any other."""
        return next((served.tokenizer for served in self._pool.loaded() if served.source.id == id), None)

    async def resolved(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        """Returns the names with aliases replaced by the models that answer them. Other names stay, known or not."""
        models = {name: await self._resolved(name) for name in {request.model for request in requests}}
        return [replace(request, model=models[request.model]) for request in requests]

    async def load(self, id: ModelId) -> ModelStatus:
        """Loads a model. Returns once it is loaded."""
        self._pool.release(await self._pool.acquire(id))
        return self._pool.status(id)

    def is_pinned(self, id: ModelId) -> bool:
        return self._pool.status(id).is_pinned

    def unload(self, id: ModelId) -> ModelStatus:
        """Begins to unload a model, pinned or not; it is unloaded when its last lease is given back. Raises
        ModelNotFound for a model that is not loaded."""
        if not self._is_loaded(id):
            raise ModelNotFound(f"model '{printable(id)}' is not loaded", param="model")
        self._pool.unload_when_idle(id)
        return self._pool.status(id)

    async def pin(self, id: ModelId) -> ModelStatus:
        """Loads a model and keeps it loaded. Returns once it is loaded."""
        await self._pool.pin(id)
        return self._pool.status(id)

    async def unpin(self, id: ModelId) -> ModelStatus:
        """Allows a model to be unloaded, to make room or after its idle time. Raises ModelNotFound for an unknown
        name."""
        status = self._pool.status(id)
        is_known = status.is_pinned or status.residence is not Residence.ABSENT
        if not is_known and not await self._is_here(id):
            raise ModelNotFound(f"no model '{printable(id)}' here", param="model")
        self._pool.unpin(id)
        return self._pool.status(id)

    def _place(self, id: ModelId) -> tuple[bool, str]:
        return id != self._live.now.model.default, id

    def _entry(self, source: ModelSource, served: ServedModel | None) -> ModelEntry:
        status = self._pool.status(source.id)
        if served is None:
            return ModelEntry(source, None, status=status)
        sampling = self._pool.sampling(served)
        return ModelEntry(source, served.description, served.reuse_note, served.tokenizer, status, sampling)

    async def _resolved(self, name: ModelId) -> ModelId:
        """Folders are searched only for a name that matches an alias."""
        now = self._live.now
        target = answering_model(name, now.server.model_of, served=(), default=now.model.default)
        return name if target == name or self._is_loaded(name) or await self._is_here(name) else ModelId(target)

    def _is_loaded(self, id: ModelId) -> bool:
        return self.loaded_tokenizer(id) is not None

    async def _is_here(self, id: ModelId) -> bool:
        return await self._pool.workers.run(self._repository.find, id) is not None
