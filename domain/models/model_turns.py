"""Which models are loaded, who holds a lease on which, and whose turn it is when not all that are wanted fit.

    absent ──Load──► loading ──loaded──► loaded ──Unload──► unloading ──unloaded──► absent
                        └──failed──► absent

A *lease* keeps a model loaded. Whoever waits for a model has its lease in the moment in which the model is loaded, so
that nothing is loaded and evicted again before it was used. Models that need room get it in the order in which they
were first asked for, but for those that would not fit now though all others made way.

While one waits for room, others *make way* for it: as few as it takes, idle ones first, then those whose last lease is
the oldest. They give no new leases, so that they are idle once those they gave are back; who asks for one meanwhile
stands in line like everybody else. So neither of two models that are always wanted can keep the other out. They are
unloaded when the last of them is idle, and no sooner: none goes in vain. A *pinned* model makes no way. A model that is
*let go of* makes way for nobody in particular.

Invariants: at most `max_loaded` models take room; a load begins only for somebody who waits, and only where its weights
fit beside those that are loaded and what requests hold; a model with a lease, or pinned, is never unloaded for another;
one move is under way at a time.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from domain.ids import ModelId
from domain.memory.ledger import MemoryLimits, MemoryUse


@dataclass(frozen=True, slots=True)
class LoadRoom:
    """How much room there is for weights, in bytes. `limit_bytes`: what the computing process may hold; None: nothing
    bounds it. `fixed_bytes`: what it holds whatever is loaded. `busy_bytes`: what running requests hold and still
    grow into; it becomes free when they end.

    What is kept to be used again (the hot tier, freed buffers) is no use: it gives way to weights.
    """

    limit_bytes: int | None = None
    fixed_bytes: int = 0
    busy_bytes: int = 0

    @classmethod
    def of(cls, limits: MemoryLimits | None, ledger: MemoryUse | None) -> "LoadRoom":
        """As the engine tells them."""
        if limits is None or ledger is None:
            return cls(None if limits is None else limits.hard_bytes)
        busy = ledger.state_bytes + ledger.flight_bytes + ledger.growth_bytes + ledger.transient_bytes
        return cls(limits.hard_bytes, ledger.other_bytes, busy)

    def available_bytes(self, weight_bytes: int) -> int | None:
        """Beside so many of weights, once no request runs. None: no bound."""
        return None if self.limit_bytes is None else max(0, self.limit_bytes - self.fixed_bytes - weight_bytes)

    def fits_now(self, weight_bytes: int) -> bool:
        """Whether so many bytes of weights in all may be held beside the requests that run."""
        return self.limit_bytes is None or self.fixed_bytes + self.busy_bytes + weight_bytes <= self.limit_bytes


@dataclass(frozen=True, slots=True)
class LoadModel:
    """To be answered by `loaded` or `failed`."""

    id: ModelId


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """To be answered by `unloaded`."""

    id: ModelId


class Residence(Enum):
    ABSENT = "absent"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


@dataclass(slots=True)
class _Model:
    """`waiting`: tickets in order of arrival. `num_bytes`: of its weights. `leaves`: it was let go of."""

    residence: Residence = Residence.ABSENT
    num_leases: int = 0
    waiting: dict[int, None] = field(default_factory=dict[int, None])
    num_bytes: int = 0
    leaves: bool = False


class ModelTurns:
    """Decides and does nothing itself: the caller carries out `next_move` and reports how it went. `room` and
    `max_loaded` (None: no bound) may change. Not thread-safe."""

    def __init__(self, max_loaded: int | None = None, room: LoadRoom | None = None) -> None:
        self.room = room or LoadRoom()
        self.max_loaded = max_loaded
        self._models: dict[ModelId, _Model] = {}  # the one whose last lease is the oldest first
        self._line: dict[ModelId, None] = {}  # models somebody waits for, and that are not being loaded
        self._granted: list[int] = []
        self._pinned: set[ModelId] = set()

    def ask(self, id: ModelId, ticket: int, num_bytes: int = 0) -> None:
        """Somebody wants a lease; `take_granted` names the ticket when it has it. `num_bytes`: what its weights will
        take; of a model that is loaded, what is known."""
        model = self._models.setdefault(id, _Model())
        model.waiting[ticket] = None
        if model.residence is Residence.ABSENT:
            model.num_bytes = num_bytes
        if model.residence is not Residence.LOADING:
            self._line.setdefault(id)
        self._grant()

    def withdraw(self, id: ModelId, ticket: int) -> None:
        """Nobody waits with this ticket any more. One that was granted is unknown here: its lease is to be released."""
        model = self._models.get(id)
        if model is not None and ticket in model.waiting:
            del model.waiting[ticket]
            self._tidy(id, model)
            self._grant()

    def share(self, id: ModelId) -> bool:
        """One more lease for somebody who belongs to a lease that is held, whoever waits. False if there is none."""
        model = self._models.get(id)
        if model is None or not model.num_leases:
            return False
        model.num_leases += 1
        return True

    def release(self, id: ModelId) -> None:
        """A lease is over."""
        model = self._models[id]
        if not model.num_leases:
            raise ValueError(f"nobody has a lease on {id}")
        model.num_leases -= 1
        self._grant()

    def pin(self, id: ModelId) -> None:
        """From now on it makes no way for others, once it is loaded."""
        self._pinned.add(id)
        self._grant()

    def unpin(self, id: ModelId) -> None:
        self._pinned.discard(id)

    def let_go(self, id: ModelId) -> None:
        """Unload it, pinned or not, once its leases are back. Nothing for a model that is not loaded."""
        model = self._models.get(id)
        if model is not None and model.residence is Residence.LOADED:
            model.leaves = True

    def fixed_bytes(self, id: ModelId, *, with_leased: bool) -> int:
        """Weights that a request of `id` cannot displace: its own model's, those of pinned models, and `with_leased`
        those that other requests use or wait for at present."""
        return sum(
            model.num_bytes
            for other, model in self._models.items()
            if model.residence in (Residence.LOADED, Residence.LOADING)
            if other == id or other in self._pinned or (with_leased and self._is_used(model))
        )

    def make_room(self, most_bytes: int) -> Sequence[ModelId]:
        """Let go of idle models, the least recently used first, until the weights of the rest are at most
        `most_bytes`. Returns those that have to be unloaded before that is true."""
        held = sum(model.num_bytes for model in self._models.values() if model.residence is not Residence.ABSENT)
        going: list[ModelId] = []
        for id in self._loaded():
            model = self._models[id]
            if held > most_bytes and (model.leaves or not self._is_used(model)) and id not in self._pinned:
                model.leaves = True
                held -= model.num_bytes
                going.append(id)
        return going

    def is_leaving(self, id: ModelId) -> bool:
        """Whether it was let go of and is not unloaded yet."""
        return id in self._models and self._models[id].leaves

    def next_move(self) -> LoadModel | UnloadModel | None:
        """What to do now, if anything; it has begun when this returns."""
        if self._is_moving():
            return None
        left = next((id for id in self._loaded() if self._models[id].leaves and not self._models[id].num_leases), None)
        if left is not None:
            return self._unload(left)
        head = self._head()
        if head is None:
            return None
        if self._fits(head, without=()):
            del self._line[head]
            self._models[head].residence = Residence.LOADING
            return LoadModel(head)
        making_way = self._making_way()
        if any(self._models[id].num_leases for id in making_way):
            return None
        return self._unload(making_way[0])

    def loaded(self, id: ModelId, num_bytes: int | None = None) -> None:
        """`num_bytes`: what its weights take in fact."""
        model = self._models[id]
        model.residence = Residence.LOADED
        if num_bytes is not None:
            model.num_bytes = num_bytes
        self._lease_all(id, model)
        self._grant()

    def failed(self, id: ModelId) -> Sequence[int]:
        """The load came to nothing. Returns the tickets of those who waited for it, and forgets them."""
        model = self._models.pop(id)
        self._grant()
        return tuple(model.waiting)

    def unloaded(self, id: ModelId) -> None:
        model = self._models[id]
        model.residence, model.leaves = Residence.ABSENT, False
        self._tidy(id, model)
        self._grant()

    def take_granted(self) -> Sequence[int]:
        """Tickets that became leases since the last call."""
        granted, self._granted = self._granted, []
        return granted

    def waits_for_room(self, id: ModelId, ticket: int) -> bool:
        """Whether the ticket waits, and not just for a load that is under way or that follows an unload under way."""
        if id not in self._line or ticket not in self._models[id].waiting:
            return False
        are_idle = not any(self._models[other].num_leases for other in self._making_way())
        return not (id == self._head() and self._is_unloading() and are_idle)

    def never_fits(self, id: ModelId, num_bytes: int) -> int | None:
        """How much it could have at most, where that is less than it needs: pinned models stay. None: it may fit."""
        pinned = sum(self._models[other].num_bytes for other in self._pinned - {id} if other in self._models)
        available = self.room.available_bytes(pinned)
        return available if available is not None and num_bytes > available else None

    def is_wanted(self, id: ModelId) -> bool:
        """Whether somebody waits for it."""
        return id in self._models and bool(self._models[id].waiting)

    def is_pinned(self, id: ModelId) -> bool:
        return id in self._pinned

    def residence(self, id: ModelId) -> Residence:
        return self._models[id].residence if id in self._models else Residence.ABSENT

    def num_leases(self, id: ModelId) -> int:
        return self._models[id].num_leases if id in self._models else 0

    def _grant(self) -> None:
        """Give leases on loaded models, but on those that make way."""
        making_way = self._making_way()
        for id in tuple(self._line):
            model = self._models[id]
            if model.residence is Residence.LOADED and id not in making_way and not model.leaves:
                del self._line[id]
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

    def _making_way(self) -> Sequence[ModelId]:
        """For the head of the line, beside what is being unloaded already; idle ones first."""
        head = self._head()
        if head is None:
            return ()
        going = [id for id, model in self._models.items() if model.residence is Residence.UNLOADING]
        chosen: list[ModelId] = []
        for id in self._may_go():
            if self._fits(head, without=(*going, *chosen)):
                break
            chosen.append(id)
        for id in tuple(chosen):  # what a later one made superfluous
            others = [other for other in chosen if other != id]
            if self._fits(head, without=(*going, *others)):
                chosen = others
        return chosen

    def _may_go(self) -> list[ModelId]:
        loaded = [id for id in self._loaded() if id not in self._pinned or self._models[id].leaves]
        return sorted(loaded, key=lambda id: self._models[id].num_leases > 0)

    def _head(self) -> ModelId | None:
        """The model whose turn it is to get room: the first that fits once others have made way."""
        going = [id for id, model in self._models.items() if model.residence is Residence.UNLOADING]
        without = (*going, *self._may_go())
        absent = (id for id in self._line if self._models[id].residence is not Residence.LOADED)
        return next((id for id in absent if self._fits(id, without=without)), None)

    def _fits(self, id: ModelId, without: Collection[ModelId]) -> bool:
        """Whether it could be loaded if these were gone; one that is being unloaded comes back after it is gone."""
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

    def _is_unloading(self) -> bool:
        return any(model.residence is Residence.UNLOADING for model in self._models.values())

    def _tidy(self, id: ModelId, model: _Model) -> None:
        if not model.waiting:
            self._line.pop(id, None)
            if model.residence is Residence.ABSENT:
                del self._models[id]
