"""The models that are loaded: taken in piece by piece, made known to whoever must know them, and let go of again.

A load that fails leaves nothing behind. Compute thread only, but for `memory`: any thread.
"""

from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from application.events import ModelLoaded, ModelUnloaded
from application.ports.compute import ComputeEngine, LoadedModel
from application.ports.engine import EngineModel, LoadProgress
from application.ports.token_constraint import ConstraintCompiler
from application.services.faults import bare, described
from application.services.prefix.cache import PrefixCache
from application.services.token_side.outlet import Outlet
from application.services.token_side.step_guard import StepGuard
from domain.errors import DomainError, ModelExceedsMemory, ModelLoadFailed
from domain.ids import ModelId
from domain.model_card import LoadOptions, ModelSource


class LoadedModels(Mapping[ModelId, LoadedModel]):
    """`memory`: bytes by purpose, as the backend told them after the last load or unload. `loading`: the load under
    way."""

    def __init__(
        self, outlet: Outlet, prefix_cache: PrefixCache, constraints: ConstraintCompiler | None, guard: StepGuard
    ) -> None:
        self._outlet = outlet
        self._prefix_cache = prefix_cache
        self._constraints = constraints
        self._guard = guard
        self._models: dict[ModelId, LoadedModel] = {}
        self.memory: Mapping[str, int] = {}
        self.loading: LoadProgress | None = None

    def __getitem__(self, id: ModelId) -> LoadedModel:
        return self._models[id]

    def __iter__(self) -> Iterator[ModelId]:
        return iter(tuple(self._models))

    def __len__(self) -> int:
        return len(self._models)

    def load(
        self, engine: ComputeEngine, source: ModelSource, options: LoadOptions
    ) -> Generator[Future[Any] | None, None, EngineModel]:
        """The pieces of a load, as `LoadSteps`; between them others may compute. Raises a bare DomainError, having let
        go of all that was loaded. A model that is there already stays."""
        started = self._outlet.now_ns()
        if source.id in self._models:
            description = self._models[source.id].description
            return EngineModel(description, self._prefix_cache.note(description))
        found = yield from self._try_load(engine, source, options)
        if isinstance(found, DomainError):  # raised here, where no frame of the attempt is left
            raise found
        description, note = found.description, found.reuse_note
        now = self._outlet.now_ns()
        self._outlet.emit(
            ModelLoaded(
                id=source.id,
                duration_ns=now - started,
                weight_bytes=description.weight_bytes,
                decode_mode=description.decode_mode.value,
                note="; ".join(part for part in (description.decode_note, note, options.note) if part),
                at_ns=now,
                active_bytes=self._active_bytes(engine),
            )
        )
        return found

    def _try_load(
        self, engine: ComputeEngine, source: ModelSource, options: LoadOptions
    ) -> Generator[Future[Any] | None, None, EngineModel | DomainError]:
        model: LoadedModel | None = None
        if (why := self._guard.begin_load(source.id, options.weight_bytes or source.file_bytes)) is not None:
            return ModelExceedsMemory(f"{source.id} does not fit: {why}", param="model")
        try:
            options = replace(options, room_bytes=self._guard.ledger.room_bytes if self._guard.ledger else None)
            if self._constraints is not None:
                self._constraints.attach(source.id, options.vocabulary)
            model = yield from self._watched(engine, source, replace(options, vocabulary=None))
            description = model.description
            note = self._prefix_cache.attach(description, options.salt)
        except Exception as error:
            if self._constraints is not None:
                self._constraints.detach(source.id)
            if model is not None:
                self._outlet.attempt("engine.unload", partial(engine.unload, model))
            self._guard.unloaded(source.id)
            if isinstance(error, DomainError):
                return bare(error)
            self._outlet.fault("engine.load", error)
            return ModelLoadFailed(f"{source.id} could not be loaded: {described(error)}")
        self._models[source.id] = model
        self._guard.loaded(source.id, description.weight_bytes)
        return EngineModel(description, note)

    def _watched(
        self, engine: ComputeEngine, source: ModelSource, options: LoadOptions
    ) -> Generator[Future[Any] | None, None, LoadedModel]:
        """The pieces of the backend, noting between them how far they are."""
        total_bytes, before_bytes = options.weight_bytes or source.file_bytes, self._reading(engine).get("active", 0)
        pieces = engine.load(source, options)
        try:
            while True:
                done_bytes = self._reading(engine).get("active", 0) - before_bytes
                self.loading = LoadProgress(source.id, max(0, done_bytes), total_bytes)
                yield next(pieces)
        except StopIteration as end:
            model: LoadedModel = end.value
            return model
        finally:
            self.loading = None
            pieces.close()

    def unload(self, engine: ComputeEngine, id: ModelId) -> None:
        """Nothing of it is computed any more."""
        model = self._models.pop(id, None)
        if model is None:
            return
        self._outlet.attempt("cache.detach", partial(self._prefix_cache.detach, id))
        if self._constraints is not None:
            self._constraints.detach(id)
        self._outlet.attempt("engine.unload", partial(engine.unload, model))
        self._guard.unloaded(id)
        self._outlet.emit(ModelUnloaded(id, self._outlet.now_ns(), self._active_bytes(engine)))

    def _active_bytes(self, engine: ComputeEngine) -> int:
        self.memory = self._reading(engine)
        return self.memory.get("active", 0)

    def _reading(self, engine: ComputeEngine) -> Mapping[str, int]:
        return self._outlet.attempt("engine.memory", lambda: dict(engine.memory())) or {}


__all__ = ("LoadedModels",)
