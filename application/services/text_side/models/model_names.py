"""Which models answer a client's requests: a name that nobody serves here may be an alias of one that is served."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from application.ports.model_repository import ModelRepository
from application.services.text_side.models.model_pool import ModelPool
from domain.ids import ModelId
from domain.models.model_alias import answering_model
from domain.request.request import GenerationRequest


class ModelNames:
    """Event loop only. `aliases`: patterns of names, each with a model, as `domain/model_alias` reads them."""

    def __init__(self, pool: ModelPool, repository: ModelRepository, aliases: Mapping[str, str], default: str) -> None:
        self._pool = pool
        self._repository = repository
        self._aliases = aliases
        self._default = default

    async def __call__(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        """The same requests, for the models that answer them. A name that is no alias is left as it is."""
        answering = {name: await self._answering(name) for name in {request.model for request in requests}}
        return [replace(request, model=answering[request.model]) for request in requests]

    async def _answering(self, name: ModelId) -> ModelId:
        """Folders are looked at only for what an alias fits."""
        target = answering_model(name, self._aliases, served=(), default=self._default)
        return name if target == name or await self._is_here(name) else ModelId(target)

    async def _is_here(self, name: ModelId) -> bool:
        if any(served.source.id == name for served in self._pool.loaded()):
            return True
        return await self._pool.workers.run(self._repository.find, name) is not None
