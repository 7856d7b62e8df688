"""The models that are loaded, the leases on them, and the order of loads when not all wanted models fit.

    absent ──Load──► loading ──loaded──► loaded ──Unload──► unloading ──unloaded──► absent
                        └──failed──► absent

A *lease* keeps a model loaded. A request that waits for a model gets its lease at the moment in which the model is
loaded, so a model is never evicted before it was used. Models that need room get it in the order of their first
request, except those that would not fit even if all others were evicted. A model that fits waits for no room: it is
loaded while those before it wait for requests to end.

While a model waits for room, others are *evictees*: as few as possible, idle ones first, then those with the oldest
last lease. They give no new leases, so that they become idle once their leases are released; a new request for one
waits in the queue. So two models that are always wanted cannot starve each other. Evictees are unloaded when the last
of them is idle. A *pinned* model is never an evictee.

Invariants: at most `max_loaded` models are resident; a load begins only for a request that waits, and only if the
weights fit beside loaded models and running requests; a model with a lease, or pinned, is never unloaded for another;
one load or unload is under way at a time.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from domain.ids import ModelId
from domain.memory.ledger import MemoryLedger, MemoryLimits


@dataclass(frozen=True, slots=True)
class LoadRoom:
    """The room for weights, in bytes. `limit_bytes`: the most that the computing process may hold; None for no limit.
    `fixed_bytes`: held whatever is loaded. `busy_bytes`: held by running requests, their growth included; free once
    they end. The hot tier and freed buffers are not counted: they are evicted for weights.
    """

    limit_bytes: int | None = None
    fixed_bytes: int = 0
    busy_bytes: int = 0

    @classmethod
    def of(cls, limits: MemoryLimits | None, ledger: MemoryLedger | None) -> "LoadRoom":
        """Returns the room by the engine's limits and its ledger."""
        if limits is None or ledger is None:
            return cls(None if limits is None else limits.hard_bytes)
        busy = ledger.state_bytes + ledger.flight_bytes + ledger.growth_bytes + ledger.transient_bytes
        return cls(limits.hard_bytes, ledger.other_bytes, busy)

    def available_bytes(self, weight_bytes: int) -> int | None:
        """The room beside `weight_bytes` once no request runs; None for no limit."""
        return None if self.limit_bytes is None else max(0, self.limit_bytes - self.fixed_bytes - weight_bytes)

    def fits_now(self, weight_bytes: int) -> bool:
        """True if `weight_bytes` of weights in all may be held beside the running requests."""
        return self.limit_bytes is None or self.fixed_bytes + self.busy_bytes + weight_bytes <= self.limit_bytes


@dataclass(frozen=True, slots=True)
class LoadModel:
    """A load that has begun; the caller reports `loaded` or `failed`."""

    id: ModelId


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """An unload that has begun; the caller reports `unloaded`."""

    id: ModelId


class Residence(Enum):
    """The state of a model between its files and memory."""

    ABSENT = "absent"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


@dataclass(slots=True)
class _Model:
    """A model that is wanted or resident. `waiting`: tickets in order of arrival. `num_bytes`: of its weights.
    `unloads_when_idle`: its unload was requested."""

    residence: Residence = Residence.ABSENT
    num_leases: int = 0
    waiting: dict[int, None] = field(default_factory=dict[int, None])
    num_bytes: int = 0
    unloads_when_idle: bool = False


class ModelResidency:
    """The state machine of resident models: the caller carries out `next_move` and reports the result. `room` and
    `max_loaded` (None for no limit) may change. Not thread-safe."""

    def __init__(self, max_loaded: int | None = None, room: LoadRoom | None = None) -> None:
        self.room = room or LoadRoom()
        self.max_loaded = max_loaded
        self._models: dict[ModelId, _Model] = {}  # by the time of the last lease, the oldest first
        self._queue: dict[ModelId, None] = {}  # wanted models that are not being loaded
        self._granted: list[int] = []
        self._pinned: set[ModelId] = set()

    def request(self, id: ModelId, ticket: int, num_bytes: int = 0) -> None:
        """Requests a lease; `take_granted` returns the ticket once it is granted. `num_bytes`: of the weights, by their
        files; ignored if the model is resident."""
        model = self._models.setdefault(id, _Model())
        model.waiting[ticket] = None
        if model.residence is Residence.ABSENT:
            model.num_bytes = num_bytes
        if model.residence is not Residence.LOADING:
            self._queue.setdefault(id)
        self._grant()

    def withdraw(self, id: ModelId, ticket: int) -> None:
        """Withdraws a ticket that was not granted yet. A granted one is ignored: its lease has to be released."""
        model = self._models.get(id)
        if model is not None and ticket in model.waiting:
            del model.waiting[ticket]
            self._tidy(id, model)
            self._grant()

    def add_lease(self, id: ModelId) -> bool:
        """Adds a lease on behalf of one that is held, before all that wait. Returns False if there is none."""
        model = self._models.get(id)
        if model is None or not model.num_leases:
            return False
        model.num_leases += 1
        return True

    def release(self, id: ModelId) -> None:
        """Ends a lease. Raises ValueError if there is none."""
        model = self._models[id]
        if not model.num_leases:
            raise ValueError(f"there is no lease on model {id}")
        model.num_leases -= 1
        self._grant()

    def pin(self, id: ModelId) -> None:
        """Excludes a model from eviction, once it is loaded."""
        self._pinned.add(id)
        self._grant()

    def unpin(self, id: ModelId) -> None:
        """Allows the eviction of a model again."""
        self._pinned.discard(id)

    def unload_when_idle(self, id: ModelId) -> None:
        """Requests the unload of a loaded model, pinned or not, once its leases have ended."""
        model = self._models.get(id)
        if model is not None and model.residence is Residence.LOADED:
            model.unloads_when_idle = True

    def fixed_bytes(self, id: ModelId, *, with_leased: bool) -> int:
        """The weights that a request of `id` cannot evict: its own model's, those of pinned models, and `with_leased`
        those that other requests use or wait for."""
        return sum(
            model.num_bytes
            for other, model in self._models.items()
            if model.residence in (Residence.LOADED, Residence.LOADING)
            if other == id or other in self._pinned or (with_leased and self._is_used(model))
        )

    @property
    def held_bytes(self) -> int:
        """The weights of all models that are resident, or being loaded or unloaded."""
        return sum(model.num_bytes for model in self._models.values() if model.residence is not Residence.ABSENT)

    def make_room(self, most_bytes: int) -> Sequence[ModelId]:
        """Requests the unload of idle models, the least recently used first, until the weights of the rest are at most
        `most_bytes`. Returns their ids."""
        held = self.held_bytes
        going: list[ModelId] = []
        for id in self._loaded():
            model = self._models[id]
            if held > most_bytes and (model.unloads_when_idle or not self._is_used(model)) and id not in self._pinned:
                model.unloads_when_idle = True
                held -= model.num_bytes
                going.append(id)
        return going

    def is_unloading(self, id: ModelId) -> bool:
        """True if a model's unload was requested and is not done."""
        return id in self._models and self._models[id].unloads_when_idle

    def next_move(self) -> LoadModel | UnloadModel | None:
        """The next load or unload, which counts as begun; None if there is nothing to do."""
        if self._is_moving():
            return None
        for id in self._loaded():
            if self._models[id].unloads_when_idle and not self._models[id].num_leases:
                return self._unload(id)
        next_id, evictees = self._head(), self._evictees()
        if any(self._models[id].num_leases for id in evictees):
            next_id, evictees = self._first(without=()), ()
        if evictees:
            return self._unload(evictees[0])
        if next_id is None:
            return None
        del self._queue[next_id]
        self._models[next_id].residence = Residence.LOADING
        return LoadModel(next_id)

    def loaded(self, id: ModelId, num_bytes: int | None = None) -> None:
        """Reports a load that succeeded. `num_bytes`: of the weights in memory."""
        model = self._models[id]
        model.residence = Residence.LOADED
        if num_bytes is not None:
            model.num_bytes = num_bytes
        self._lease_all(id, model)
        self._grant()

    def failed(self, id: ModelId) -> Sequence[int]:
        """Reports a load that failed. Returns the tickets that waited for it, which are dropped."""
        model = self._models.pop(id)
        self._grant()
        return tuple(model.waiting)

    def unloaded(self, id: ModelId) -> None:
        """Reports an unload that is done."""
        model = self._models[id]
        model.residence, model.unloads_when_idle = Residence.ABSENT, False
        self._tidy(id, model)
        self._grant()

    def take_granted(self) -> Sequence[int]:
        """Returns the tickets that became leases since the last call."""
        granted, self._granted = self._granted, []
        return granted

    def waits_for_room(self, id: ModelId, ticket: int) -> bool:
        """True if a ticket waits for more than loads and unloads: for the requests that use other models, or came
        first."""
        if id not in self._queue or ticket not in self._models[id].waiting:
            return False
        if self._models[id].residence is not Residence.LOADED and self._fits(id, without=()):
            return False
        return id != self._head() or any(self._models[other].num_leases for other in self._evictees())

    def never_fits(self, id: ModelId, num_bytes: int) -> int | None:
        """The most room in bytes that a model could get, if that is less than it needs; None if it may fit. Pinned
        models are not evicted."""
        pinned = sum(self._models[other].num_bytes for other in self._pinned - {id} if other in self._models)
        available = self.room.available_bytes(pinned)
        return available if available is not None and num_bytes > available else None

    def is_wanted(self, id: ModelId) -> bool:
        """True if a request waits for a model."""
        return id in self._models and bool(self._models[id].waiting)

    def is_pinned(self, id: ModelId) -> bool:
        return id in self._pinned

    def residence(self, id: ModelId) -> Residence:
        return self._models[id].residence if id in self._models else Residence.ABSENT

    def num_leases(self, id: ModelId) -> int:
        return self._models[id].num_leases if id in self._models else 0

    def _grant(self) -> None:
        """Grants leases on loaded models that are not evictees."""
        evictees = self._evictees()
        for id in tuple(self._queue):
            model = self._models[id]
            if model.residence is Residence.LOADED and id not in evictees and not model.unloads_when_idle:
                del self._queue[id]
                self._lease_all(id, model)

    def _lease_all(self, id: ModelId, model: _Model) -> None:
        self._granted += model.waiting
        model.num_leases += len(model.waiting)
        model.waiting = {}
        self._models[id] = self._models.pop(id)

    def _unload(self, id: ModelId) -> UnloadModel:
        self._models[id].residence = Residence.UNLOADING
        self._grant()
        return UnloadModel(id)

    def _evictees(self) -> Sequence[ModelId]:
        """The models to evict for the head of the queue, beside those being unloaded; idle ones first."""
        head = self._head()
        if head is None:
            return ()
        going = [id for id, model in self._models.items() if model.residence is Residence.UNLOADING]
        chosen: list[ModelId] = []
        for id in self._evictable():
            if self._fits(head, without=(*going, *chosen)):
                break
            chosen.append(id)
        for id in tuple(chosen):  # a later evictee may make an earlier one unnecessary
            others = [other for other in chosen if other != id]
            if self._fits(head, without=(*going, *others)):
                chosen = others
        return chosen

    def _evictable(self) -> list[ModelId]:
        loaded = [id for id in self._loaded() if id not in self._pinned or self._models[id].unloads_when_idle]
        return sorted(loaded, key=lambda id: self._models[id].num_leases > 0)

    def _head(self) -> ModelId | None:
        """The first model of the queue that fits once all evictable models are unloaded."""
        going = [id for id, model in self._models.items() if model.residence is Residence.UNLOADING]
        return self._first((*going, *self._evictable()))

    def _first(self, without: Collection[ModelId]) -> ModelId | None:
        """The first model of the queue that could be loaded if `without` were not resident."""
        absent = (id for id in self._queue if self._models[id].residence is not Residence.LOADED)
        return next((id for id in absent if self._fits(id, without=without)), None)

    def _fits(self, id: ModelId, without: Collection[ModelId]) -> bool:
        """True if a model could be loaded if `without` were not resident."""
        beside = [
            other
            for other, model in self._models.items()
            if model.residence is not Residence.ABSENT and other not in without and other != id
        ]
        if self.max_loaded is not None and len(beside) >= self.max_loaded:
            return False
        return self.room.fits_now(sum(self._models[other].num_bytes for other in (*beside, id)))

    def _loaded(self) -> list[ModelId]:
        return [id for id, model in self._models.items() if model.residence is Residence.LOADED]

    @staticmethod
    def _is_used(model: _Model) -> bool:
        return model.num_leases > 0 or bool(model.waiting)

    def _is_moving(self) -> bool:
        return any(model.residence in (Residence.LOADING, Residence.UNLOADING) for model in self._models.values())

    def _tidy(self, id: ModelId, model: _Model) -> None:
        if not model.waiting:
            self._queue.pop(id, None)
            if model.residence is Residence.ABSENT:
                del self._models[id]
