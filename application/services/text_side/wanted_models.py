"""The models that an engine should have: what each new one loads again, and what the present one could not.

Event loop only.
"""

from application.ports.engine import Engine
from domain.ids import ModelId
from domain.model_card import LoadOptions, ModelSource


class WantedModels:
    def __init__(self) -> None:
        self._wanted: dict[ModelId, tuple[ModelSource, LoadOptions]] = {}
        self._missing: set[ModelId] = set()

    @property
    def ids(self) -> tuple[ModelId, ...]:
        return tuple(self._wanted)

    def add(self, source: ModelSource, options: LoadOptions) -> None:
        """The present engine has it."""
        self._wanted[source.id] = source, options
        self._missing.discard(source.id)

    def remove(self, id: ModelId) -> None:
        """Nobody wants it any more."""
        self._wanted.pop(id, None)
        self._missing.discard(id)

    def miss(self, id: ModelId) -> None:
        """The present engine could not load it."""
        self._missing.add(id)

    def lacks(self, id: ModelId) -> bool:
        return id in self._missing

    def begin(self) -> None:
        """Another engine, which has not been asked for any."""
        self._missing.clear()

    async def load(self, id: ModelId, engine: Engine) -> None:
        """Again, in this engine. Raises DomainError."""
        if (wanted := self._wanted.get(id)) is None:  # it was removed while another one was loaded
            return
        await engine.load(*wanted)
        self._missing.discard(id)
        if id not in self._wanted:  # it was removed meanwhile
            await engine.unload(id)


__all__ = ("WantedModels",)
