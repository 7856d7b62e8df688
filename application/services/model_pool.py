"""The models being served: loaded on first use, shared, and unloaded least recently used when idle.

A model is loaded once however many requests wait for it. A lease (`acquire` to `release`) keeps it loaded.
"""

import asyncio
from dataclasses import dataclass

from application.ports.model_repository import DownloadProgress, ModelRepository
from application.ports.tokenizer import Tokenizer, TokenizerLoader
from application.services.engine_loop import EngineLoop
from application.settings import ModelSettings
from domain.errors import ModelNotFound, ServerUnavailable
from domain.ids import ModelId
from domain.model_card import ModelDescription, ModelSource
from domain.shown import shown


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model ready for requests."""

    source: ModelSource
    tokenizer: Tokenizer
    description: ModelDescription


class ModelPool:
    """Event loop only; blocking work goes to workers and to the compute thread."""

    def __init__(
        self, repository: ModelRepository, tokenizers: TokenizerLoader, engine: EngineLoop, settings: ModelSettings
    ) -> None:
        self._repository = repository
        self._tokenizers = tokenizers
        self._engine = engine
        self._settings = settings
        self._served: dict[ModelId, ServedModel] = {}  # in order of last use
        self._leases: dict[ModelId, int] = {}
        self._loading: dict[ModelId, asyncio.Task[ServedModel]] = {}
        self._make_room = asyncio.Lock()
        self.download: DownloadProgress | None = None

    def loaded(self) -> tuple[ServedModel, ...]:
        """Least recently used first."""
        return tuple(self._served.values())

    async def acquire(self, id: ModelId) -> ServedModel:
        """Lease a model, loading it if need be. Raises ModelNotFound, ModelLoadFailed or ServerUnavailable."""
        while (served := self._served.get(id)) is None:
            task = self._loading.get(id)
            if task is None:
                task = asyncio.create_task(self._load(id))
                self._loading[id] = task
                task.add_done_callback(lambda done: self._loaded(id, done))
            await asyncio.shield(task)
        self._served[id] = self._served.pop(id)
        self._leases[id] = self._leases.get(id, 0) + 1
        return served

    def release(self, served: ServedModel) -> None:
        id = served.source.id
        self._leases[id] -= 1

    async def _load(self, id: ModelId) -> ServedModel:
        source = await asyncio.to_thread(self._find, id)
        tokenizer = await asyncio.to_thread(self._tokenizers.load, source)
        async with self._make_room:
            await self._unload_idle()
            description = await asyncio.wrap_future(self._engine.load(source))
            served = ServedModel(source, tokenizer, description)
            self._served[id] = served
        return served

    def _loaded(self, id: ModelId, task: asyncio.Task[ServedModel]) -> None:
        del self._loading[id]
        if not task.cancelled():
            task.exception()  # seen: whoever waited raises it, and perhaps nobody waits any more

    def _find(self, id: ModelId) -> ModelSource:
        source = self._repository.find(id)
        if source is not None:
            return source
        if id != self._settings.default:  # a client must not be able to fill the disk with a name
            here = ", ".join(source.id for source in self._repository.list())
            raise ModelNotFound(f"no model '{shown(id)}' here; there are: {here}", param="model")
        return self._repository.fetch(id, self._note_download)

    def _note_download(self, progress: DownloadProgress) -> None:
        self.download = progress if progress.done_bytes < progress.total_bytes else None

    async def _unload_idle(self) -> None:
        while len(self._served) >= self._settings.max_loaded:
            idle = next((id for id in self._served if not self._leases.get(id)), None)
            if idle is None:
                raise ServerUnavailable(
                    f"{len(self._served)} models are loaded and busy; raise model.max_loaded or retry later"
                )
            del self._served[idle]
            await asyncio.wrap_future(self._engine.unload(idle))


__all__ = ("ModelPool", "ServedModel")
