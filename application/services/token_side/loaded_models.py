"""The models in memory, and the loads under way.

The oldest load advances by one piece at a time, so that a step of running requests fits between two pieces. A load that
fails leaves nothing behind. Its caller is answered after the batch that reports the load was delivered. Compute thread
only, except `memory`, `loading` and `num_loading`: any thread.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeAlias

from application.events import ModelLoaded, ModelUnloaded
from application.ports.compute import ComputeEngine, LoadedModel
from application.ports.engine import EngineModel
from application.ports.token_constraint import ConstraintCompiler
from application.services.faults import bare, described
from application.services.memory_leases import Lease, Purpose, Refused
from application.services.prefix.cache import PrefixCache
from application.services.token_side.event_batcher import EventBatcher
from application.services.token_side.memory_guard import MemoryGuard
from domain.byte_size import format_bytes
from domain.errors import DomainError, ModelExceedsMemory, ModelLoadFailed
from domain.ids import ModelId
from domain.models.load_progress import LoadPhase, LoadProgress
from domain.models.model_card import LoadOptions, ModelSource

Pieces: TypeAlias = Generator[Future[Any] | None, None, EngineModel]


class LoadedModels(Mapping[ModelId, LoadedModel]):
    """The loaded models by id. `memory`: bytes by purpose, as the backend reported them after the last load or unload.
    `wake`: called when a load that waits for a worker may continue."""

    def __init__(
        self,
        batcher: EventBatcher,
        prefix_cache: PrefixCache,
        constraints: ConstraintCompiler | None,
        guard: MemoryGuard,
    ) -> None:
        self._batcher = batcher
        self._prefix_cache = prefix_cache
        self._constraints = constraints
        self._guard = guard
        self._backend: ComputeEngine | None = None
        self._models: dict[ModelId, tuple[LoadedModel, Lease]] = {}
        self._queue: deque[tuple[Pieces, Future[EngineModel]]] = deque()
        self._awaited: Future[Any] | None = None
        self.wake: Callable[[], object] = lambda: None
        self.memory: Mapping[str, int] = {}
        self._account: _Account | None = None

    def connect(self, backend: ComputeEngine) -> None:
        """Loads come from `backend` from now on; called before any other method of the compute thread."""
        self._backend = backend

    def __getitem__(self, id: ModelId) -> LoadedModel:
        return self._models[id][0]

    def __iter__(self) -> Iterator[ModelId]:
        return iter(tuple(self._models))

    def __len__(self) -> int:
        return len(self._models)

    @property
    def loading(self) -> LoadProgress | None:
        """The load under way."""
        account = self._account
        return None if account is None else account.progress

    @property
    def num_loading(self) -> int:
        """The number of loads that are not done."""
        return len(self._queue)

    def add(self, source: ModelSource, options: LoadOptions, result: "Future[EngineModel]") -> None:
        """Queues a load. From now on `result` cannot be cancelled: the load continues."""
        if result.set_running_or_notify_cancel():
            self._queue.append((self.load(source, options), result))

    def advance(self) -> bool:
        """Runs one piece of the oldest load. Returns False when there is none to run now."""
        if not self._queue or (self._awaited is not None and not self._awaited.done()):
            return False
        pieces, result = self._queue[0]
        try:
            self._awaited = next(pieces)
        except Exception as error:
            self._awaited = None
            self._queue.popleft()
            self._batcher.deliver()
            if isinstance(error, StopIteration):
                result.set_result(error.value)
            else:
                result.set_exception(bare(error))
        if self._awaited is not None:
            self._awaited.add_done_callback(lambda _: self.wake())
        return True

    def abandon_loads(self, error: DomainError) -> None:
        """Gives up every load under way; its caller gets `error`."""
        while self._queue:
            pieces, result = self._queue.popleft()
            try:
                pieces.close()
            finally:
                self._batcher.deliver()
                result.set_exception(error)

    def load(self, source: ModelSource, options: LoadOptions) -> Pieces:
        """Returns the pieces of a load, as `LoadSteps`; steps may run between them. A model that is loaded already
        stays. The pieces raise a bare DomainError, after everything that was loaded is released."""
        started = self._batcher.now_ns()
        if source.id in self._models:
            description = self[source.id].description.with_context(options.context_length)
            return EngineModel(description, self._prefix_cache.note(description))
        found = yield from self._try_load(source, options)
        if isinstance(found, DomainError):  # raised here, where no frame of the attempt is left
            raise found
        description, note = found.description, found.reuse_note
        now = self._batcher.now_ns()
        context = f"context of {description.context_length} tokens: {description.context.origin}"
        notes = (context, description.decode_note, description.drafter_note, note, options.note)
        self._batcher.emit(
            ModelLoaded(
                id=source.id,
                duration_ns=now - started,
                weight_bytes=description.weight_bytes,
                decode_mode=description.decode_mode.value,
                note="; ".join(part for part in notes if part),
                at_ns=now,
                active_bytes=self._active_bytes(),
                pace=description.pace,
                token_bytes=description.memory.token_bytes,
            )
        )
        return found

    def finish(self) -> None:
        """Waits for the backend's work, and verifies it. Raises DeviceFailed."""
        self._connected().finish()

    def unload(self, id: ModelId) -> None:
        """Unloads a model of which no sequence is open. Ignores a model that is not loaded."""
        model, lease = self._models.pop(id, (None, None))
        if model is None or lease is None:
            return
        with self._batcher.attempt("cache.detach"):
            self._prefix_cache.detach(id)
        if self._constraints is not None:
            self._constraints.detach(id)
        with self._batcher.attempt("engine.unload"):
            self._connected().unload(model)
        lease.end()
        self._guard.models_changed(is_loaded=False)
        self._batcher.emit(ModelUnloaded(id, self._batcher.now_ns(), self._active_bytes()))

    def _try_load(
        self, source: ModelSource, options: LoadOptions
    ) -> Generator[Future[Any] | None, None, EngineModel | DomainError]:
        model: LoadedModel | None = None
        memory, needed_bytes = self._prefix_cache.memory, options.weight_bytes or source.file_bytes
        lease = memory.reserve(Purpose.WEIGHTS, needed_bytes)
        if isinstance(lease, Refused):
            needed, room = format_bytes(needed_bytes), format_bytes(max(0, lease.room_bytes))
            return ModelExceedsMemory(
                f"model {source.id} does not fit in memory: it needs {needed}, and {room} are free; unload another"
                " model or raise engine.memory",
                param="model",
            )
        try:
            if self._constraints is not None:
                self._constraints.attach(source.id, options.vocabulary)
            options = replace(options, room_bytes=memory.free_bytes(), vocabulary=None)
            model = yield from self._with_progress(source, options)
            description = model.description.with_context(options.context_length)
            note = self._prefix_cache.attach(description, options.salt)
        except Exception as error:
            if self._constraints is not None:
                self._constraints.detach(source.id)
            if model is not None:
                with self._batcher.attempt("engine.unload"):
                    self._connected().unload(model)
            lease.end()
            self._guard.models_changed(is_loaded=False)
            if isinstance(error, DomainError):
                return bare(error)
            self._batcher.fault("engine.load", error)
            return ModelLoadFailed(f"model {source.id} could not be loaded: {described(error)}")
        self._models[source.id] = model, lease
        lease.resize(description.weight_bytes)
        self._guard.models_changed(is_loaded=True)
        return EngineModel(description, note)

    def _with_progress(
        self, source: ModelSource, options: LoadOptions
    ) -> Generator[Future[Any] | None, None, LoadedModel]:
        """Returns the backend's pieces, which report to `loading`."""
        account = self._account = _Account(source.id, self._batcher.now_ns)
        try:
            return (yield from self._connected().load(source, options, account))
        finally:
            self._account = None

    def _active_bytes(self) -> int:
        self.memory = self._reading()
        return self.memory.get("active", 0)

    def _reading(self) -> Mapping[str, int]:
        with self._batcher.attempt("engine.memory"):
            return dict(self._connected().memory())
        return {}

    def _connected(self) -> ComputeEngine:
        assert self._backend is not None, "no backend is connected"
        return self._backend


class _Account:
    """The progress of one load: a LoadReport, which a worker may still call once the load was given up."""

    def __init__(self, id: ModelId, now_ns: Callable[[], int]) -> None:
        self.progress = LoadProgress(id)
        self._now_ns = now_ns

    def __call__(self, phase: LoadPhase, done: int, total: int) -> None:
        self.progress = self.progress.reached(phase, done, total, self._now_ns())
