"""The models being served: loaded on first use, shared, and unloaded least recently used when idle.

A lease (`acquire` to `release`) keeps a model loaded; `domain/model_turns` decides who gets one, and who makes room.
Nothing is unloaded for a model before its files, its tokenizer and what can be told without reading its weights were
found sound, and before it is known not to have failed a moment ago.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from application.ports.clock import Clock
from application.ports.engine import EngineModel
from application.ports.model_repository import DownloadProgress, ModelCheck, ModelRepository
from application.ports.tokenizer import Tokenizer, TokenizerLoader
from application.services.lane import Lane
from application.services.text_side.load_failures import LoadFailures
from application.settings import ModelSettings
from domain.errors import ModelLoadFailed, ModelNotFound, ModelsBusy
from domain.ids import ModelId
from domain.model_card import LoadOptions, ModelDescription, ModelSource
from domain.model_turns import LoadModel, ModelTurns, UnloadModel
from domain.shown import shown

RETRY_AFTER_S = 5
"""What a client is told that waited for room in vain."""

NUM_THREADS = 4
MAX_PENDING = 64
"""Folders that are being looked at, or wait for it."""


class ModelHost(Protocol):
    """Where models run: what of the Engine port the pool needs."""

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel: ...

    async def unload(self, id: ModelId) -> None: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model ready for requests. `reuse_note`: why its prompts are never reused; empty when they are."""

    source: ModelSource
    tokenizer: Tokenizer
    description: ModelDescription
    reuse_note: str


@dataclass(frozen=True, slots=True)
class _Found:
    """A model that may be loaded."""

    source: ModelSource
    tokenizer: Tokenizer


class ModelPool:
    """Event loop only; blocking work goes to `workers` and to the compute thread."""

    def __init__(
        self,
        *,
        repository: ModelRepository,
        tokenizers: TokenizerLoader,
        engine: ModelHost,
        settings: ModelSettings,
        clock: Clock,
        check: ModelCheck = lambda _source: None,
        workers: Lane | None = None,
    ) -> None:
        self._repository = repository
        self._tokenizers = tokenizers
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._check = check
        self.workers = workers or Lane("model folder", NUM_THREADS, max_pending=MAX_PENDING)
        self._turns = ModelTurns(settings.max_loaded)
        self._failures = LoadFailures()
        self._served: dict[ModelId, ServedModel] = {}  # in order of last use
        self._found: dict[ModelId, _Found] = {}  # of models somebody waits for
        self._finding: dict[ModelId, asyncio.Task[_Found]] = {}
        self._waiting: dict[int, tuple[ModelId, asyncio.Future[None]]] = {}
        self._tickets = count()
        self._moves: set[asyncio.Task[None]] = set()
        self.download: DownloadProgress | None = None

    def loaded(self) -> tuple[ServedModel, ...]:
        """Least recently used first."""
        return tuple(self._served.values())

    async def acquire(self, id: ModelId) -> ServedModel:
        """Lease a model, loading it if need be. Raises ModelNotFound, ModelLoadFailed, ServerUnavailable, or ModelsBusy
        when for `model.room_wait_s` there was no room for it. Cancelled or failed, nothing is held."""
        if id not in self._served:
            found = await self._find_once(id)
            self._found[id] = found  # nothing is awaited from here to `ask`
        ticket, granted = next(self._tickets), asyncio.get_running_loop().create_future()
        self._waiting[ticket] = id, granted
        self._turns.ask(id, ticket)
        self._move()
        patience = asyncio.get_running_loop().call_later(self._settings.room_wait_s, self._refuse, id, ticket)
        try:
            await granted
        except BaseException:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self._turns.release(id)  # cancelled in the moment it was served
            self._turns.withdraw(id, ticket)
            self._move()
            raise
        finally:
            patience.cancel()
            del self._waiting[ticket]
        self._served[id] = self._served.pop(id)
        return self._served[id]

    def share(self, served: ServedModel) -> bool:
        """One more lease, at once, for what belongs to a lease on this model; False if nobody has one any more."""
        id = served.source.id
        return self._served.get(id) is served and self._turns.share(id)

    def release(self, served: ServedModel) -> None:
        """Give a lease back, once."""
        self._turns.release(served.source.id)
        self._move()

    @property
    def num_waiting(self) -> int:
        """Requests whose model is looked for, loaded, or waits for room."""
        return len(self._waiting)

    def num_leases(self, id: ModelId) -> int:
        """For leak checks."""
        return self._turns.num_leases(id)

    def close(self) -> None:
        """Look for no more models; a download under way is not waited for."""
        self.workers.close()

    # ---- before a model takes room -----------------------------------------------------------------------------

    async def _find_once(self, id: ModelId) -> _Found:
        """Shared by all who ask meanwhile; one of them leaving does not end it."""
        task = self._finding.get(id)
        if task is None:
            task = asyncio.create_task(self._find(id))
            self._finding[id] = task
            task.add_done_callback(lambda done: self._end_finding(id, done))
        return await asyncio.shield(task)

    def _end_finding(self, id: ModelId, task: asyncio.Task[_Found]) -> None:
        del self._finding[id]
        if not task.cancelled():
            task.exception()  # seen: whoever waited raises it, and perhaps nobody waits any more

    async def _find(self, id: ModelId) -> _Found:
        source = await self.workers.run(self._locate, id)
        if (reason := self._failures.recall(source, self._now_s())) is not None:
            raise ModelLoadFailed(reason)
        return _Found(source, await self.workers.run(self._prepare, source))

    def _prepare(self, source: ModelSource) -> Tokenizer:
        self._check(source)
        return self._tokenizers.load(source)

    def _locate(self, id: ModelId) -> ModelSource:
        source = self._repository.find(id)
        if source is not None:
            return source
        if id != self._settings.default:  # a client must not be able to fill the disk with a name
            here = ", ".join(source.id for source in self._repository.list())
            raise ModelNotFound(f"no model '{shown(id)}' here; there are: {here}", param="model")
        return self._repository.fetch(id, self._note_download)

    def _note_download(self, progress: DownloadProgress) -> None:
        self.download = progress if progress.done_bytes < progress.total_bytes else None

    # ---- room --------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """After anything changed: hand out what was granted, and begin what is to be done next."""
        for ticket in self._turns.take_granted():
            id, granted = self._waiting[ticket]
            if granted.done():  # its client has just left
                self._turns.release(id)
            else:
                granted.set_result(None)
        match self._turns.next_move():
            case LoadModel(id):
                self._begin(self._load(self._found.pop(id)))
            case UnloadModel(id):
                self._begin(self._unload(id))
            case None:
                pass
        for id in [id for id in self._found if not self._turns.is_wanted(id)]:
            del self._found[id]

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)

    async def _load(self, found: _Found) -> None:
        id = found.source.id
        try:
            model = await self._engine.load(found.source, LoadOptions(self._settings.dtype))
        except Exception as error:
            if isinstance(error, ModelLoadFailed):
                self._failures.note(found.source, error.message, self._now_s())
            self._end_waiting(id, error)
        else:
            self._failures.forget(id)
            capped = model.description.capped(self._settings.context_length)
            self._served[id] = ServedModel(found.source, found.tokenizer, capped, model.reuse_note)
            self._turns.loaded(id)
        self._move()

    async def _unload(self, id: ModelId) -> None:
        gone = self._served.pop(id)
        if self._turns.is_wanted(id):  # they asked while it made way
            self._found[id] = _Found(gone.source, gone.tokenizer)
        # What goes wrong is counted by the engine. Either way the model serves nobody any more.
        await asyncio.gather(self._engine.unload(id), return_exceptions=True)
        self._turns.unloaded(id)
        self._move()

    def _end_waiting(self, id: ModelId, error: Exception) -> None:
        for ticket in self._turns.failed(id):
            _, granted = self._waiting[ticket]
            if not granted.done():
                granted.set_exception(error)

    def _refuse(self, id: ModelId, ticket: int) -> None:
        """The time is up for one that waits; not for one whose model is being loaded."""
        if not self._turns.waits_for_room(id, ticket):
            return
        self._turns.withdraw(id, ticket)
        _, granted = self._waiting[ticket]
        if not granted.done():
            busy = ", ".join(model.source.id for model in self.loaded())
            granted.set_exception(
                ModelsBusy(
                    f"no room for {id} within {self._settings.room_wait_s:g} s: {busy} in use, and model.max_loaded is"
                    f" {self._settings.max_loaded}",
                    retry_after_s=RETRY_AFTER_S,
                )
            )

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9


__all__ = ("ModelHost", "ModelPool", "ServedModel")
