"""Models of the hub for an admin: found, downloaded one at a time, and removed from the hub's cache.

    running ──► done, or failed
       └──► cancelling ──► cancelled, or done if it was quicker

What has arrived of a cancelled or failed download stays, and the next one of the model continues it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from threading import Event

from application.ports.model_hub import DownloadSize, HubMatch, ModelHub
from application.ports.model_repository import DownloadProgress
from application.services.lane import Lane
from application.use_cases.models import ModelEntry, Models
from domain.errors import DomainError, DownloadStopped, InvalidRequest, ModelNotFound, RequestNotFound
from domain.ids import ModelId
from domain.models.model_card import ModelOrigin
from domain.models.residency import Residence
from domain.printable import printable
from domain.setup.download_room import disk_problem, memory_problem
from domain.setup.suggestions import suggested

MAX_MATCHES = 25
MAX_PULLS = 16
"""The pulls that are remembered, the last ones."""

AGENTS_CONTEXT = 32_768
"""The context that a suggested model has room for."""

LOOK_UP_S = 20.0

_log = logging.getLogger("cairn")


class PullState(Enum):
    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class Pull:
    """A download. `problem`: of a failed one. `end`: None while it runs."""

    id: int
    model: ModelId
    progress: DownloadProgress
    problem: str = ""
    end: PullState | None = None
    stop: Event = field(default_factory=Event)

    @property
    def state(self) -> PullState:
        return self.end or (PullState.CANCELLING if self.stop.is_set() else PullState.RUNNING)

    def report(self, now: DownloadProgress) -> None:
        """Takes the progress, on the thread that downloads. Raises DownloadStopped, which ends it."""
        if self.stop.is_set():
            raise DownloadStopped(f"the download of {self.model} was cancelled")
        self.progress = now


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model of the hub. `context_length`: the longest that memory has room for, and `note`: a remark, both of a
    suggested one. `is_here`: it needs no download. `problem`: why it cannot be served. `memory`: by how much it exceeds
    memory. Both are empty if there is nothing to say."""

    match: HubMatch
    context_length: int | None = None
    note: str = ""
    is_here: bool = False
    problem: str = ""
    memory: str = ""


@dataclass(frozen=True, slots=True)
class Need:
    """The room that a download takes. `problem`: why it is refused. `memory`: as of a Candidate."""

    size: DownloadSize
    problem: str
    memory: str


class HubModels:
    """Event loop only. Each method raises as the ModelHub does."""

    def __init__(self, hub: ModelHub, models: Models, why_unserved: Callable[[ModelId, str], str]) -> None:
        """`why_unserved`: by id and model_type, why a model would not be served here; empty if it would be."""
        self._hub = hub
        self._models = models
        self._why_unserved = why_unserved
        self._questions = Lane("model hub", 2, max_pending=8, timeout_s=LOOK_UP_S)
        self._downloads = Lane("model download", 1)
        self._pulls: list[Pull] = []
        self._numbers = count(1)
        self._task: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Stops the download, which is not waited for."""
        for pull in self._pulls:
            pull.stop.set()
        if self._task is not None:
            self._task.cancel()
        self._questions.close()
        self._downloads.close()

    async def search(self, query: str) -> list[Candidate]:
        """Returns models that the hub finds; for an empty query those that are suggested for this server's memory."""
        here = {entry.source.id for entry in await self._models.all()}
        limit = self._models.room.limit_bytes
        if not query:
            found = [] if limit is None else list(suggested(limit, AGENTS_CONTEXT))
            return [
                Candidate(HubMatch(id, weight_bytes=one.weight_bytes), longest, one.note, id in here)
                for one, longest in found
                if not self._why_unserved(id := ModelId(one.name), "")
            ]
        matches = await self._questions.run(self._hub.search, query, MAX_MATCHES)
        return [
            Candidate(
                match,
                is_here=match.id in here,
                problem=self._why_unserved(match.id, match.model_type),
                memory=memory_problem(match.weight_bytes, limit),
            )
            for match in matches
        ]

    async def need(self, id: ModelId) -> Need:
        """Returns the room that a download of the model takes."""
        if problem := self._why_unserved(id, ""):
            raise InvalidRequest(f"{printable(id)} cannot be downloaded: {problem}", param="model")
        size = await self._questions.run(self._hub.size, id)
        why = self._why_unserved(id, size.model_type)
        problem = f"{id} cannot be served: {why}" if why else ""
        return Need(
            size,
            problem or disk_problem(id, size.missing_bytes, size.free_bytes, size.cache),
            memory_problem(size.weight_bytes, self._models.room.limit_bytes),
        )

    def pulls(self) -> Sequence[Pull]:
        """The pulls since the start, the last first."""
        return self._pulls[::-1]

    async def pull(self, id: ModelId, *, beyond_memory: bool = False) -> Pull:
        """Begins a download, and returns once it runs. `beyond_memory`: also of weights that exceed memory. Raises
        InvalidRequest for a model that cannot be served or does not fit, and while another download runs."""
        self._check_none_runs()
        need = await self.need(id)
        if need.problem:
            raise InvalidRequest(need.problem, param="model")
        if need.memory and not beyond_memory:
            raise InvalidRequest(
                f"{id}: {need.memory}; with beyond_memory it is downloaded all the same", param="model"
            )
        self._check_none_runs()
        pull = Pull(next(self._numbers), id, DownloadProgress(0, need.size.missing_bytes))
        self._pulls = [*(one for one in self._pulls if one.model != id), pull][-MAX_PULLS:]
        self._task = asyncio.create_task(self._download(pull))
        return pull

    def cancel(self, number: int) -> Pull:
        """Cancels a pull; one that has ended stays as it is. Raises RequestNotFound."""
        for pull in self._pulls:
            if pull.id == number:
                pull.stop.set()
                return pull
        raise RequestNotFound(f"no pull has the id {number}")

    async def remove(self, id: ModelId) -> int:
        """Removes a model, or what has arrived of it, from the hub's cache, and returns its bytes. Raises
        InvalidRequest for one that is in use or lies elsewhere."""
        if any(pull.model == id and pull.end is None for pull in self._pulls):
            raise InvalidRequest(f"{id} is being downloaded: cancel that first", param="model")
        entries = await self._models.all()
        entry = next((one for one in entries if one.source.id == id), None)
        if entry is None and not any(pull.model == id for pull in self._pulls):
            raise ModelNotFound(f"no model '{printable(id)}' here", param="model")
        if entry is not None:
            if entry.source.origin is not ModelOrigin.HUB:
                raise InvalidRequest(
                    f"{id} is not in the hub's cache: files in other places are left alone", param="model"
                )
            users = [one.source.id for one in entries if one.source.path == entry.source.path and _is_held(one)]
            if users:
                raise InvalidRequest(f"{', '.join(users)} is loaded from these files: unload it first", param="model")
        num_bytes = await self._questions.run(self._hub.remove, id)
        self._pulls = [one for one in self._pulls if one.model != id]
        return num_bytes

    def _check_none_runs(self) -> None:
        for pull in self._pulls:
            if pull.end is None:
                how = "waits for the hub to be cancelled" if pull.stop.is_set() else "is being downloaded"
                raise InvalidRequest(f"{pull.model} {how}, and one model is downloaded at a time: wait, or cancel it")

    async def _download(self, pull: Pull) -> None:
        try:
            await self._downloads.run(self._hub.download, pull.model, pull.report)
            pull.end = PullState.DONE
        except DownloadStopped:
            pull.end = PullState.CANCELLED
        except DomainError as error:
            pull.problem, pull.end = error.message, PullState.FAILED
        except Exception as error:
            _log.exception("the download of %s failed", pull.model)
            pull.problem, pull.end = f"the download failed: {type(error).__name__}", PullState.FAILED
        _log.info("download of %s: %s%s", pull.model, pull.state.value, f": {pull.problem}" if pull.problem else "")


def _is_held(entry: ModelEntry) -> bool:
    return entry.status.residence is not Residence.ABSENT
