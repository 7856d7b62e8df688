"""Which models are loaded, who holds a lease on which, and whose turn it is when not all that are wanted fit.

    absent ──Load──► loading ──loaded──► loaded ──Unload──► unloading ──unloaded──► absent
                        └──failed──► absent

A *lease* keeps a model loaded. Whoever waits for a model has its lease in the moment in which the model is loaded, so
that nothing is loaded and evicted again before it was used. Models that need room get it in the order in which they
were first asked for. While one waits for room and no loaded model is idle, the one whose last lease is the oldest
*makes way*: it gives no new leases, so that it is idle once those it gave are back; who asks for it meanwhile stands in
line like everybody else. So neither of two models that are always wanted can keep the other out.

Invariants: at most `max_loaded` models take room; a model with a lease is never unloaded; one move is under way at a
time; a load begins only for somebody who waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from domain.ids import ModelId


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
    """`waiting`: tickets in order of arrival."""

    residence: Residence = Residence.ABSENT
    num_leases: int = 0
    waiting: dict[int, None] = field(default_factory=dict[int, None])


class ModelTurns:
    """Decides and does nothing itself: the caller carries out `next_move` and reports how it went. Not thread-safe."""

    def __init__(self, max_loaded: int) -> None:
        self._max_loaded = max_loaded
        self._models: dict[ModelId, _Model] = {}  # the one whose last lease is the oldest first
        self._line: dict[ModelId, None] = {}  # models somebody waits for, and that are not being loaded
        self._granted: list[int] = []

    def ask(self, id: ModelId, ticket: int) -> None:
        """Somebody wants a lease; `take_granted` names the ticket when it has it."""
        model = self._models.setdefault(id, _Model())
        model.waiting[ticket] = None
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

    def next_move(self) -> LoadModel | UnloadModel | None:
        """What to do now, if anything; it has begun when this returns."""
        head = self._head()
        if head is None or self._is_moving():
            return None
        if self._num_resident() < self._max_loaded:
            del self._line[head]
            self._models[head].residence = Residence.LOADING
            return LoadModel(head)
        idle = next((id for id in self._loaded() if not self._models[id].num_leases), None)
        if idle is None:
            return None
        self._models[idle].residence = Residence.UNLOADING
        self._grant()
        return UnloadModel(idle)

    def loaded(self, id: ModelId) -> None:
        model = self._models[id]
        model.residence = Residence.LOADED
        self._lease_all(id, model)
        self._grant()

    def failed(self, id: ModelId) -> Sequence[int]:
        """The load came to nothing. Returns the tickets of those who waited for it, and forgets them."""
        model = self._models.pop(id)
        self._grant()
        return tuple(model.waiting)

    def unloaded(self, id: ModelId) -> None:
        self._models[id].residence = Residence.ABSENT
        self._tidy(id, self._models[id])
        self._grant()

    def take_granted(self) -> Sequence[int]:
        """Tickets that became leases since the last call."""
        granted, self._granted = self._granted, []
        return granted

    def waits_for_room(self, id: ModelId, ticket: int) -> bool:
        """Whether the ticket waits, and not just for a load that is under way or that follows an unload under way."""
        is_next = id == self._head() and self._is_unloading()
        return id in self._line and not is_next and ticket in self._models[id].waiting

    def is_wanted(self, id: ModelId) -> bool:
        """Whether somebody waits for it."""
        return id in self._models and bool(self._models[id].waiting)

    def num_leases(self, id: ModelId) -> int:
        return self._models[id].num_leases if id in self._models else 0

    def _grant(self) -> None:
        """Give leases on loaded models, but on the one that makes way."""
        making_way = self._making_way()
        for id in tuple(self._line):
            model = self._models[id]
            if model.residence is Residence.LOADED and id != making_way:
                del self._line[id]
                self._lease_all(id, model)

    def _lease_all(self, id: ModelId, model: _Model) -> None:
        self._granted += model.waiting
        model.num_leases += len(model.waiting)
        model.waiting = {}
        self._models[id] = self._models.pop(id)

    def _making_way(self) -> ModelId | None:
        if self._head() is None or self._num_resident() < self._max_loaded:
            return None
        if self._is_unloading():
            return None
        loaded = self._loaded()
        return next((id for id in loaded if not self._models[id].num_leases), next(iter(loaded), None))

    def _head(self) -> ModelId | None:
        """The model whose turn it is to get room."""
        return next((id for id in self._line if self._models[id].residence is not Residence.LOADED), None)

    def _loaded(self) -> list[ModelId]:
        return [id for id, model in self._models.items() if model.residence is Residence.LOADED]

    def _num_resident(self) -> int:
        return sum(model.residence is not Residence.ABSENT for model in self._models.values())

    def _is_moving(self) -> bool:
        return any(model.residence in (Residence.LOADING, Residence.UNLOADING) for model in self._models.values())

    def _is_unloading(self) -> bool:
        return any(model.residence is Residence.UNLOADING for model in self._models.values())

    def _tidy(self, id: ModelId, model: _Model) -> None:
        if not model.waiting:
            self._line.pop(id, None)
            if model.residence is Residence.ABSENT:
                del self._models[id]


__all__ = ("LoadModel", "ModelTurns", "Residence", "UnloadModel")
