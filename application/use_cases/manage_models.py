"""What an operator does with models by hand: load, unload, pin, and see where each stands."""

from application.ports.model_repository import ModelRepository
from application.services.text_side.models.model_pool import ModelPool
from application.services.text_side.models.served_model import ModelStanding
from domain.errors import ModelNotFound
from domain.ids import ModelId
from domain.models.model_turns import LoadRoom, Residence
from domain.shown import shown


class ManageModels:
    """Event loop only. Errors as the pool's `acquire` raises them."""

    def __init__(self, pool: ModelPool, repository: ModelRepository) -> None:
        self._pool = pool
        self._repository = repository

    @property
    def room(self) -> LoadRoom:
        """How much there is for weights."""
        return self._pool.room

    async def load(self, id: ModelId) -> ModelStanding:
        """Loaded when this returns."""
        self._pool.release(await self._pool.acquire(id))
        return self._pool.standing(id)

    def unload(self, id: ModelId) -> ModelStanding:
        """Begin to unload it, pinned or not; with leases, it goes when they are back. Raises ModelNotFound for one that
        is not loaded."""
        if not any(served.source.id == id for served in self._pool.loaded()):
            raise ModelNotFound(f"model '{shown(id)}' is not loaded", param="model")
        self._pool.let_go(id)
        return self._pool.standing(id)

    async def pin(self, id: ModelId) -> ModelStanding:
        """Loaded when this returns, and kept so."""
        await self._pool.pin(id)
        return self._pool.standing(id)

    async def unpin(self, id: ModelId) -> ModelStanding:
        """It may be unloaded again, when another needs the room or its time is up. Raises ModelNotFound for a name that
        no model has."""
        standing = self._pool.standing(id)
        is_known = standing.is_pinned or standing.residence is not Residence.ABSENT
        if not is_known and await self._pool.workers.run(self._repository.find, id) is None:
            raise ModelNotFound(f"no model '{shown(id)}' here", param="model")
        self._pool.unpin(id)
        return self._pool.standing(id)
