"""The pool of served models: loaded on first use, shared, and unloaded when idle.

An idle model is unloaded after its time to live, or to make room for another one, the least recently used first. A
lease (`acquire` to `release`) keeps a model loaded; `domain/models/residency` decides which request gets one and
which model makes room. No model is unloaded for another one before that one's files and tokenizer were checked, it is
known to fit, and it is known not to have failed a moment ago.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from application.live_settings import LiveSettings
from application.ports.clock import Clock
from application.ports.engine import Engine
from application.ports.model_repository import DownloadProgress, ModelCheck, ModelRepository
from application.ports.tokenizer import TokenizerLoader
from application.ports.vision import ImageProcessorLoader
from application.services.lane import Lane
from application.services.text_side.models.model_finder import (
    FoundModel,
    ModelFinder,
    ModelStatus,
    ServedModel,
    accept_any_model,
)
from domain.byte_size import format_bytes
from domain.errors import ModelExceedsMemory, ModelsBusy
from domain.ids import ModelId
from domain.models.capability import Capability
from domain.models.model_card import ModelSource
from domain.models.residency import LoadModel, LoadRoom, ModelResidency, Residence, UnloadModel
from domain.request.sampling import SamplingDefaults

ROOM_WAIT_S = 60.0
"""The time a request waits for the requests of other models to end if its own model does not fit beside them."""

RETRY_AFTER_S = 5
"""The `Retry-After` of a request that waited for room in vain."""

ROOM_CHECK_INTERVAL_S = 0.5
"""The interval between checks for room while a request waits for it: memory that requests give back is not reported."""

MAX_UNMEASURED = 2
"""The number of models at once where the amount of memory is unknown."""


class ModelPool:
    """Event loop only; blocking work runs in `workers` and in the engine."""

    def __init__(
        self,
        *,
        repository: ModelRepository,
        tokenizers: TokenizerLoader,
        engine: Engine,
        live: LiveSettings,
        clock: Clock,
        check: ModelCheck = accept_any_model,
        workers: Lane | None = None,
        room: Callable[[], LoadRoom] | None = None,
        max_loaded: int | None = None,
        room_wait_s: float = ROOM_WAIT_S,
        images: ImageProcessorLoader | None = None,
    ) -> None:
        """`room`: reads the memory for weights; by default from the engine's
        status. `max_loaded`: models at once; None for as many as fit. `images`: None where no model sees."""
        self._max_loaded, self._room_wait_s = max_loaded, room_wait_s
        self._engine = engine
        self._live = live
        self._room = room or self._engine_room
        self._finder = ModelFinder(repository, tokenizers, live, check, clock, workers, images)
        self.workers = self._finder.workers
        self._residency = ModelResidency()
        self._read_room()
        for name, table in live.now.models.items():
            if table.pin:
                self._residency.pin(ModelId(name))
        self._served: dict[ModelId, ServedModel] = {}  # in order of last use
        self._found: dict[ModelId, FoundModel] = {}  # of models that requests wait for
        self._waiting: dict[int, tuple[ModelId, asyncio.Future[None]]] = {}
        self._tickets = count()
        self._changes: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._idle_timers: dict[ModelId, asyncio.TimerHandle] = {}
        self._room_timer: asyncio.TimerHandle | None = None
        live.follow(self._restart_idle_timers)

    @property
    def download(self) -> DownloadProgress | None:
        """The download that is under way."""
        return self._finder.download

    def loaded(self) -> tuple[ServedModel, ...]:
        """Returns the loaded models, the least recently used first."""
        return tuple(self._served.values())

    def status(self, id: ModelId) -> ModelStatus:
        """Returns the state of a model. Unknown names have one too."""
        models, ttl_s = self._residency, self._ttl_s(id)
        return ModelStatus(models.residence(id), models.num_leases(id), models.is_pinned(id), ttl_s)

    def sampling(self, served: ServedModel) -> SamplingDefaults:
        """Returns the defaults of requests for a model: of its table, else as its files advise."""
        return self._live.table(served.source.id).sampling.over(served.advised)

    @property
    def room(self) -> LoadRoom:
        """The memory for weights, now."""
        return self._room()

    async def why_too_large(self, source: ModelSource) -> str:
        """The sizes of a model that is not loaded and cannot be: what its weights need, what is available, and which
        part is experts. Empty if it may fit. The headers of its files are read only if they are too large."""
        self._read_room()
        is_absent = self._residency.residence(source.id) is Residence.ABSENT
        if not is_absent or self._too_large(source.id, source.file_bytes) is None:
            return ""
        preview = await self._finder.preview(source)
        error = self._too_large(source.id, preview.weight_bytes or source.file_bytes, preview.expert_bytes)
        return "" if error is None else error.message

    async def pin(self, id: ModelId) -> None:
        """Loads a model and keeps it loaded. Raises as `acquire`; the model is not pinned then."""
        served = await self.acquire(id)
        self._residency.pin(id)
        self.release(served)

    def unpin(self, id: ModelId) -> None:
        """Allows a model to be unloaded to make room, from now on."""
        self._residency.unpin(id)
        self._advance()

    def unload_when_idle(self, id: ModelId) -> None:
        """Unloads a model when its last lease is given back, pinned or not. A later `acquire` loads it again."""
        self._residency.unload_when_idle(id)
        self._advance()

    def fixed_bytes(self, id: ModelId, *, with_leased: bool) -> int:
        """The bytes of weights that a request for `id` cannot have: see `ModelResidency`."""
        return self._residency.fixed_bytes(id, with_leased=with_leased)

    async def make_room(self, most_bytes: int) -> None:
        """Unloads idle models until the remaining weights are at most `most_bytes`, or no idle model is left."""
        unloading = self._residency.make_room(most_bytes)
        self._advance()
        while any(map(self._residency.is_unloading, unloading)):
            self._changed.clear()
            await self._changed.wait()

    async def acquire(self, id: ModelId, needed: Capability | None = None) -> ServedModel:
        """Leases a model, loading it if necessary. Raises ModelNotFound, ModelLoadFailed, ServerUnavailable,
        InvalidRequest in place of loading a model that cannot do what is `needed`, ModelExceedsMemory for a model that
        can never be loaded, and ModelsBusy when no room was found for it in time. After cancellation or failure nothing
        is held."""
        ticket, granted = next(self._tickets), asyncio.get_running_loop().create_future()
        self._waiting[ticket] = id, granted
        try:
            num_bytes = 0 if id in self._served else await self._find(id, needed)
            self._residency.request(id, ticket, num_bytes)
            self._advance()
            while not (await asyncio.wait((granted,), timeout=self._room_wait_s))[0]:
                if self._residency.waits_for_room(id, ticket):
                    raise self._busy(id)
            granted.result()
        except BaseException:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self._residency.release(id)  # cancelled at the moment in which its lease was granted
            self._residency.withdraw(id, ticket)
            self._advance()
            raise
        finally:
            del self._waiting[ticket]
        self._served[id] = self._served.pop(id)
        return self._served[id]

    @asynccontextmanager
    async def leased(self, id: ModelId) -> AsyncGenerator[ServedModel]:
        """Holds a lease for the duration of a block. Raises as `acquire`."""
        served = await self.acquire(id)
        try:
            yield served
        finally:
            self.release(served)

    def share(self, served: ServedModel) -> bool:
        """Takes one more lease on a leased model, without waiting. Returns False if it is no longer leased."""
        id = served.source.id
        return self._served.get(id) is served and self._residency.add_lease(id)

    def release(self, served: ServedModel) -> None:
        """Gives a lease back, once."""
        self._residency.release(served.source.id)
        self._advance()

    @property
    def num_waiting(self) -> int:
        """Requests whose model is located, loaded, or waits for room."""
        return len(self._waiting)

    def close(self) -> None:
        """Stops the timers and workers; a download under way is not waited for."""
        for timer in self._idle_timers.values():
            timer.cancel()
        self._idle_timers.clear()
        if self._room_timer is not None:
            self._room_timer.cancel()
        self._finder.close()

    async def _find(self, id: ModelId, needed: Capability | None) -> int:
        """Returns the bytes of its weights, kept until the next `_advance`; call `request` before that."""
        found = await self._finder.find(id)
        if needed is not None:
            found.source.check(needed)
        self._read_room()
        if (error := self._too_large(id, found.weight_bytes, found.expert_bytes)) is not None:
            raise error
        self._found[id] = found
        return found.weight_bytes

    # ---- room --------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Hands out granted leases and begins the next load or unload; called after every change."""
        self._changed.set()
        self._read_room()
        for ticket in self._residency.take_granted():
            id, granted = self._waiting[ticket]
            if granted.done():  # its client has just left
                self._residency.release(id)
            else:
                granted.set_result(None)
        match self._residency.next_move():
            case LoadModel(id):
                self._begin(self._load(self._found.pop(id)))
            case UnloadModel(id):
                self._begin(self._unload(id))
            case None:
                pass
        for id in [id for id in self._found if not self._residency.is_wanted(id)]:
            del self._found[id]
        self._set_idle_timers()
        if self._found and self._room_timer is None:
            self._room_timer = asyncio.get_running_loop().call_later(ROOM_CHECK_INTERVAL_S, self._check_room)

    def _engine_room(self) -> LoadRoom:
        status = self._engine.status()
        return LoadRoom.of(status.limits, status.ledger)

    def _read_room(self) -> None:
        self._residency.room = self._room()
        is_measured = self._residency.room.limit_bytes is not None
        self._residency.max_loaded = self._max_loaded or (None if is_measured else MAX_UNMEASURED)

    def _check_room(self) -> None:
        self._room_timer = None
        self._advance()

    def _too_large(self, id: ModelId, num_bytes: int, expert_bytes: int = 0) -> ModelExceedsMemory | None:
        """The error of a model whose weights never fit; None if they may fit."""
        available = self._residency.never_fits(id, num_bytes)
        if available is None:
            return None
        limit = self._residency.room.limit_bytes
        experts = f"; {format_bytes(expert_bytes)} of the weights are experts" if expert_bytes else ""
        return ModelExceedsMemory(
            f"{id} does not fit: its weights need {format_bytes(num_bytes)}, and {format_bytes(available)} are"
            f" available at most, of a limit of {format_bytes(limit or 0)}: {format_bytes(num_bytes - available)} too"
            f" much{experts}",
            param="model",
            needed_bytes=num_bytes,
            available_bytes=available,
            limit_bytes=limit or 0,
        )

    def _set_idle_timers(self) -> None:
        """Sets one timer for each idle model that has a time to live; a model that stays idle keeps its timer."""
        idle = {id for id in self._served if not self._residency.num_leases(id)}
        for id in self._idle_timers.keys() - idle:
            self._idle_timers.pop(id).cancel()
        for id in idle - self._idle_timers.keys():
            if (ttl_s := self._ttl_s(id)) is not None:
                self._idle_timers[id] = asyncio.get_running_loop().call_later(ttl_s, self._expire, id)

    def _restart_idle_timers(self) -> None:
        """The times to live may have changed: each idle model has its own from now on."""
        for timer in self._idle_timers.values():
            timer.cancel()
        self._idle_timers.clear()
        self._set_idle_timers()

    def _expire(self, id: ModelId) -> None:
        del self._idle_timers[id]
        if not self._residency.is_pinned(id):
            self.unload_when_idle(id)

    def _ttl_s(self, id: ModelId) -> int | None:
        ttl = self._live.table(id).idle_ttl or self._live.now.model.idle_ttl
        return None if ttl is None else ttl.num_seconds

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def _load(self, found: FoundModel) -> None:
        id = found.source.id
        try:
            options = replace(
                found.options,
                weight_bytes=found.weight_bytes,
                note=found.tokenizer.note,
                vocabulary=await self.workers.run(found.tokenizer.vocabulary),
            )
            model = await self._engine.load(found.source, options)
        except Exception as error:
            self._finder.note_failure(found.source, error)
            self._end_waiting(id, error)
        else:
            self._finder.forget_failure(id)
            table = self._live.table(id)
            self._served[id] = ServedModel(
                found.source,
                found.tokenizer,
                model.description,
                model.reuse_note,
                found.options,
                found.advised,
                found.images,
                table.repetition_detection,
            )
            self._residency.loaded(id, model.description.weight_bytes or found.weight_bytes)
        self._advance()

    async def _unload(self, id: ModelId) -> None:
        unloaded = self._served.pop(id)
        if self._residency.is_wanted(id):  # it was requested while it was unloaded
            self._found[id] = self._finder.as_found(unloaded)
        # The engine counts its failures. Either way the model is no longer served.
        await asyncio.gather(self._engine.unload(id), return_exceptions=True)
        self._residency.unloaded(id)
        self._advance()

    def _end_waiting(self, id: ModelId, error: Exception) -> None:
        for ticket in self._residency.failed(id):
            _, granted = self._waiting[ticket]
            if not granted.done():
                granted.set_exception(error)

    def _busy(self, id: ModelId) -> ModelsBusy:
        """The refusal of a request that waited for room too long. It names no other model, because the client may not
        be allowed to know of it."""
        room, held, found = self._residency.room, self._residency.held_bytes, self._found.get(id)
        num_others = len(self._served.keys() - {id})
        why = "requests for another model came first"
        if found is not None and room.limit_bytes is not None and not room.fits_now(held + found.weight_bytes):
            needed, taken = format_bytes(found.weight_bytes), format_bytes(held + room.fixed_bytes + room.busy_bytes)
            why = f"it needs {needed}, and {taken} of {format_bytes(room.limit_bytes)} are held"
        elif (max_loaded := self._residency.max_loaded) is not None:
            why = f"{max_loaded} may be loaded at once"
        busy = f"{num_others} other model{'s' * (num_others != 1)}" if num_others else "requests"
        message = f"no room for {id} within {self._room_wait_s:g} s: {busy} in use, and {why}"
        return ModelsBusy(message, retry_after_s=RETRY_AFTER_S)
