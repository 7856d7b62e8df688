"""The models that are loaded, and loads under way: taken in piece by piece, made known to whoever must know them, and
released again.

A piece of the oldest load is done at a time, so that a step of running requests fits between two pieces. A load that
fails leaves nothing behind; whoever asked for it has its answer when the last piece is done, after the batch that
reports it. Compute thread only, but for `memory` and `wake`: any thread.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from application.events import ModelLoaded, ModelUnloaded
from application.ports.compute import ComputeEngine, LoadedModel
from application.ports.engine import EngineModel, LoadProgress
from application.ports.token_constraint import ConstraintCompiler
from application.services.faults import bare, described
from application.services.memory_ledger import Lease, Purpose, Refused
from application.services.prefix.cache import PrefixCache
from application.services.token_side.event_batcher import EventBatcher
from application.services.token_side.memory_guard import StepGuard
from domain.byte_size import format_bytes
from domain.errors import DomainError, ModelExceedsMemory, ModelLoadFailed
from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelSource


class LoadedModels(Mapping[ModelId, LoadedModel]):
    """`memory`: bytes by purpose, as the backend told them after the last load or unload. `loading`: the load under
    way."""

    def __init__(
        self, batcher: EventBatcher, prefix_cache: PrefixCache, constraints: ConstraintCompiler | None, guard: StepGuard
    ) -> None:
        self._batcher = batcher
        self._prefix_cache = prefix_cache
        self._constraints = constraints
        self._guard = guard
        self._models: dict[ModelId, LoadedModel] = {}
        self._leases: dict[ModelId, Lease] = {}
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
        started = self._batcher.now_ns()
        if source.id in self._models:
            description = self._models[source.id].description
            return EngineModel(description, self._prefix_cache.note(description))
        found = yield from self._try_load(engine, source, options)
        if isinstance(found, DomainError):  # raised here, where no frame of the attempt is left
            raise found
        description, note = found.description, found.reuse_note
        now = self._batcher.now_ns()
        self._batcher.emit(
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
        memory, needed_bytes = self._prefix_cache.memory, options.weight_bytes or source.file_bytes
        lease = memory.reserve(Purpose.WEIGHTS, needed_bytes)
        if isinstance(lease, Refused):
            needed, room = format_bytes(needed_bytes), format_bytes(max(0, lease.room_bytes))
            return ModelExceedsMemory(
                f"{source.id} does not fit: it needs {needed}, and {room} are free", param="model"
            )
        try:
            if self._constraints is not None:
                self._constraints.attach(source.id, options.vocabulary)
            options = replace(options, room_bytes=memory.free_bytes(), vocabulary=None)
            model = yield from self._watched(engine, source, options)
            description = model.description
            note = self._prefix_cache.attach(description, options.salt)
        except Exception as error:
            if self._constraints is not None:
                self._constraints.detach(source.id)
            if model is not None:
                self._batcher.attempt("engine.unload", partial(engine.unload, model))
            lease.end()
            self._guard.models_changed(is_loaded=False)
            if isinstance(error, DomainError):
                return bare(error)
            self._batcher.fault("engine.load", error)
            return ModelLoadFailed(f"{source.id} could not be loaded: {described(error)}")
        self._models[source.id] = model
        self._leases[source.id] = lease
        lease.resize(description.weight_bytes)
        self._guard.models_changed(is_loaded=True)
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
        self._batcher.attempt("cache.detach", partial(self._prefix_cache.detach, id))
        if self._constraints is not None:
            self._constraints.detach(id)
        self._batcher.attempt("engine.unload", partial(engine.unload, model))
        self._leases.pop(id).end()
        self._guard.models_changed(is_loaded=False)
        self._batcher.emit(ModelUnloaded(id, self._batcher.now_ns(), self._active_bytes(engine)))

    def _active_bytes(self, engine: ComputeEngine) -> int:
        self.memory = self._reading(engine)
        return self.memory.get("active", 0)

    def _reading(self, engine: ComputeEngine) -> Mapping[str, int]:
        return self._batcher.attempt("engine.memory", lambda: dict(engine.memory())) or {}


Pieces: TypeAlias = Generator[Future[Any] | None, None, EngineModel]


class ModelLoads:
    """`deliver` hands over what a load has told before whoever asked is answered; `wake` is called when a load that
    waits for a worker may go on."""

    def __init__(self, deliver: Callable[[], object], wake: Callable[[], object]) -> None:
        self._deliver = deliver
        self._wake = wake
        self._line: deque[tuple[Pieces, Future[EngineModel]]] = deque()
        self._awaited: Future[Any] | None = None

    def __len__(self) -> int:
        """Loads that are not done. Any thread."""
        return len(self._line)

    def add(self, pieces: Pieces, result: "Future[EngineModel]") -> None:
        """Take up a load; nothing of it is done yet. From now on `result` cannot be cancelled: the load goes on."""
        if result.set_running_or_notify_cancel():
            self._line.append((pieces, result))

    def advance(self) -> bool:
        """Do one piece. False when there is none to do now."""
        if not self._line or (self._awaited is not None and not self._awaited.done()):
            return False
        pieces, result = self._line[0]
        self._awaited = None
        try:
            self._awaited = next(pieces)
        except StopIteration as end:
            self._line.popleft()
            model: EngineModel = end.value
            self._answer(partial(result.set_result, model))
        except Exception as error:
            self._line.popleft()
            bared = bare(error)
            self._answer(partial(result.set_exception, bared))
        if self._awaited is not None:
            self._awaited.add_done_callback(lambda _: self._wake())
        return True

    def end(self, error: DomainError) -> None:
        """Give up every load, so that nobody waits for a thread that is gone."""
        while self._line:
            pieces, result = self._line.popleft()
            try:
                pieces.close()
            finally:
                self._answer(partial(result.set_exception, error))

    def _answer(self, tell: Callable[[], None]) -> None:
        """Tell whoever still waits."""
        self._deliver()
        tell()
