"""Quantised copies of models, made beside the service: one at a time, in a process of its own, at low priority.

    running ──► done, or failed
       └──► cancelling ──► cancelled

Whole shards of a cancelled or failed copy stay, and the same order continues them, until they are removed.
"""

import asyncio
import logging
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from application.events import FaultObserved
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.quantiser import Quantiser, QuantOrder, QuantPhase, QuantProgress, QuantReceipt
from application.services.lane import Lane
from application.services.quantised_copies import QuantCopy, copies_in, is_same_folder
from application.use_cases.models import Models
from domain.byte_size import format_bytes
from domain.errors import (
    DomainError,
    InvalidRequest,
    ModelLoadFailed,
    ModelNotFound,
    RequestNotFound,
    ServerUnavailable,
    require,
)
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from domain.models.quantisation import MEASURED, MIXED, MODES, Quantisation, QuantPlan, by_rules
from domain.models.residency import Residence
from domain.printable import printable

PROCESS_BYTES = 512 * 2**20
"""The memory of the process beside the largest step."""

MAX_JOBS = 16
"""The jobs that are remembered, the last ones."""

MAX_RULES = 256

_MAX_BASE_CHARS = 95

_RULES = "rules"
"""The recipe's name where only its rules are given."""

_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_.,+=@~-]{0,95}")
"""A name by which a folder is listed among the models."""

_log = logging.getLogger("cairn")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QuantWish:
    """The wish of a user. `rules`: of a recipe's file, whose name is the recipe's. `most_bytes`: of the weights, for
    a measured recipe. `name`: of the copy; empty for one that says how it was made. `force`: also where a model loses
    much; `allow_plain`: also where many weights cannot be quantised."""

    form: Quantisation
    recipe: str = ""
    rules: Mapping[str, Any] = field(default_factory=dict[str, Any])
    most_bytes: int | None = None
    name: str = ""
    force: bool = False
    allow_plain: bool = False
    checks: bool = True

    def order(self, source: ModelSource, directory: str) -> QuantOrder:
        """Returns the order for a model, whose copy goes to a folder below `directory`. Raises InvalidRequest."""
        recipe = self.recipe or (MEASURED if self.most_bytes is not None else _RULES if self.rules else "")
        named = (MEASURED, *MIXED)
        require(recipe in ("", *named) or bool(self.rules), "recipe", f"must be {', '.join(named)}, or a file")
        require(not self.rules or recipe not in named, "recipe", f"is {recipe}, which takes no rules")
        require(len(self.rules) <= MAX_RULES, "recipe", f"has more than {MAX_RULES} rules")
        try:
            by_rules(self.rules, self.form)
        except InvalidRequest as error:
            if error.param == "recipe":
                raise
            raise InvalidRequest(f"recipe has a rule whose {error.message}", param="recipe") from None
        require(self.most_bytes is None or recipe == MEASURED, "size", f"needs the recipe {MEASURED}")
        require(recipe not in named or self.form.mode == "affine", "mode", f"must be affine with the recipe {recipe}")
        if why := why_not_quantised(source):
            raise InvalidRequest(f"{source.id} {why}", param="model")
        name = self.name or _name(source, self.form, recipe, self.most_bytes)
        require(
            _NAME.fullmatch(name) is not None,
            "name",
            "must be at most 96 letters, digits and _.,+=@~- without two dots in a row, and begin with a letter, a"
            " digit or _",
        )
        require(bool(directory), "model.dirs", "names no folder for the copy: add one, or give a folder")
        out = Path(directory).expanduser().absolute() / name
        if out.exists():
            raise InvalidRequest(f"{out} exists: remove it, or give another name", param="name")
        return QuantOrder(
            source.path, str(out), source.use, self.form, recipe, self.rules, self.most_bytes, self.checks
        )

    def check(self, plan: QuantPlan, source: ModelSource) -> None:
        """Raises InvalidRequest for a plan that is not carried out."""
        param, why = plan.refusal(is_pooled=source.use.is_pooled, force=self.force, allow_plain=self.allow_plain)
        if why:
            raise InvalidRequest(f"{param}: {why}", param=param)


def _name(source: ModelSource, form: Quantisation, recipe: str, most_bytes: int | None) -> str:
    how = f"{form.bits}bit" if form.mode == "affine" else form.mode
    if most_bytes is not None:
        how = format_bytes(most_bytes).replace(" ", "")
    if form.group != MODES[form.mode][0]:
        how += f"-g{form.group}"
    end = "-".join(filter(None, (how, Path(recipe).stem)))
    base = re.sub(r"(?:[^A-Za-z0-9_.]|\.{2,})+", "-", Path(source.id).name).strip("-.")[: _MAX_BASE_CHARS - len(end)]
    return f"{base or 'model'}-{end}"


def why_not_quantised(source: ModelSource) -> str:
    """Returns the reason why a model has no quantised copies, as far as the list of models tells; else empty."""
    if source.adapter:
        return "has an adapter: quantise the model without it"
    if source.form.bits and source.form.bits not in (16, 32):
        return f"is quantised already ({source.form.quantization}): quantise a source in bfloat16, float16 or float32"
    if source.use.is_encoder:
        return "is an encoder, which is small and computed in full precision"
    return ""


class JobState(Enum):
    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    DONE = "done"
    FAILED = "failed"


class _Stopped(Exception):
    pass


@dataclass(slots=True)
class QuantJob:
    """`plan`: None before a measured one is known. `problem`: of a failed one. `receipt`: of a finished one. `end`:
    None while it runs."""

    id: int
    model: ModelId
    wish: QuantWish
    order: QuantOrder
    plan: QuantPlan | None = None
    progress: QuantProgress = QuantProgress(QuantPhase.READING)
    problem: str = ""
    receipt: QuantReceipt | None = None
    end: JobState | None = None
    stop: Event = field(default_factory=Event)

    @property
    def name(self) -> str:
        """The copy's."""
        return Path(self.order.out).name

    @property
    def state(self) -> JobState:
        return self.end or (JobState.CANCELLING if self.stop.is_set() else JobState.RUNNING)

    def report(self, now: QuantProgress) -> None:
        """Takes the progress, on the job's thread. Raises to stop it."""
        if self.stop.is_set():
            raise _Stopped
        self.progress = now


class Quantise:
    """Event loop only. `quantiser`: None where the models are toys. `directory`: the folder of the copies, empty for
    none."""

    def __init__(
        self, quantiser: Quantiser | None, directory: str, models: Models, events: EventSink, clock: Clock
    ) -> None:
        self._quantiser, self._models = quantiser, models
        self._directory = str(Path(directory).expanduser().absolute()) if directory else ""
        self._events, self._clock = events, clock
        self._lane, self._folders = Lane("quantise", 1), Lane("quantised copies", 1)
        self._jobs: list[QuantJob] = []
        self._numbers = count(1)
        self._task: asyncio.Task[None] | None = None
        self._is_planning = False
        self._removed: set[str] = set()

    def close(self) -> None:
        """Stops the job, which is not waited for."""
        for job in self._jobs:
            job.stop.set()
        if self._task is not None:
            self._task.cancel()
        self._lane.close()
        self._folders.close()

    def jobs(self) -> Sequence[QuantJob]:
        """The jobs since the start, the last first."""
        return self._jobs[::-1]

    def is_being_made(self, name: str) -> bool:
        return any(job.name == name and job.end is None for job in self._jobs)

    async def sources(self) -> list[tuple[ModelSource, str]]:
        """Returns the models, each with the reason why it has no quantised copies; empty if it may have."""
        return [(entry.source, why_not_quantised(entry.source)) for entry in await self._models.all()]

    async def plan(self, id: ModelId, wish: QuantWish) -> tuple[QuantOrder, QuantPlan]:
        """Returns what a job would write. A measured recipe measures the model first, which takes a job. Raises
        InvalidRequest, ModelNotFound, ModelLoadFailed."""
        source, order = await self._order(id, wish)
        if order.recipe == MEASURED:
            raise InvalidRequest(f"recipe {MEASURED} is planned by its job: start it", param="recipe")
        return order, await self._planned(order, wish, source)

    async def start(self, id: ModelId, wish: QuantWish) -> QuantJob:
        """Begins a job. Raises as `plan`, and InvalidRequest where memory has no room beside loaded models."""
        source, order = await self._order(id, wish)
        plan = None
        if order.recipe != MEASURED:
            plan = await self._planned(order, wish, source)
            self._check_room(plan)
        self._check_none_runs()
        job = QuantJob(next(self._numbers), id, wish, order, plan)
        if job.name in self._removed:
            raise InvalidRequest(f"{job.name} is being removed: try again", param="name")
        self._jobs = [*(one for one in self._jobs if one.name != job.name), job][-MAX_JOBS:]
        self._task = asyncio.create_task(self._run(job, source))
        return job

    def cancel(self, number: int) -> QuantJob:
        """Cancels a job; one that has ended stays as it is. Raises RequestNotFound."""
        for job in self._jobs:
            if job.id == number:
                job.stop.set()
                return job
        raise RequestNotFound(f"no job has the id {number}")

    async def copies(self) -> list[QuantCopy]:
        """Returns the copies in the model folder, whole and partial."""
        return await self._folders.run(copies_in, self._directory)

    async def remove(self, name: str) -> int:
        """Removes a copy, or what a stopped job left of it, and returns its bytes. Raises ModelNotFound, InvalidRequest
        for one that is loaded or being made."""
        found = next((copy for copy in await self.copies() if copy.name == name), None)
        if found is None:
            raise ModelNotFound(f"no quantised copy '{printable(name)}' here", param="name")
        entries = await self._models.all()
        held = [one.source for one in entries if one.status.residence is not Residence.ABSENT]
        if self.is_being_made(name):
            raise InvalidRequest(f"{name} is being made: cancel that first", param="name")
        self._removed.add(name)
        try:
            await self._folders.run(_remove, found, held)
        finally:
            self._removed.discard(name)
        self._jobs = [job for job in self._jobs if job.name != name]
        return found.num_bytes

    async def _order(self, id: ModelId, wish: QuantWish) -> tuple[ModelSource, QuantOrder]:
        if self._quantiser is None:
            why = 'the models here are toys without weights (engine.backend = "fake")'
            raise InvalidRequest(f"{printable(id)} cannot be quantised: {why}", param="model")
        self._check_none_runs()
        entries = await self._models.all()
        source = next((entry.source for entry in entries if entry.source.id == id), None)
        if source is None:
            raise ModelNotFound(f"no model '{printable(id)}' here", param="model")
        order = wish.order(source, self._directory)
        name = Path(order.out).name
        require(name not in {entry.source.id for entry in entries}, "name", f"is that of another model: {name}")
        return source, order

    async def _planned(self, order: QuantOrder, wish: QuantWish, source: ModelSource) -> QuantPlan:
        assert self._quantiser is not None
        self._check_none_runs()
        self._is_planning = True
        try:
            plan = await self._lane.run(self._quantiser.plan, order, lambda _: None)
        except ModelLoadFailed as error:
            error.param = error.param or "model"
            raise
        finally:
            self._is_planning = False
        wish.check(plan, source)
        return plan

    def _check_none_runs(self) -> None:
        running = next((job.name for job in self._jobs if job.end is None), "")
        if running or self._is_planning:
            what = f"{running} is being made" if running else "a copy is being planned"
            raise InvalidRequest(f"{what}, and one is made at a time: wait, or cancel it")

    def _check_room(self, plan: QuantPlan) -> None:
        """The engine counts what other processes leave, so that the process's memory is the ledger's, too: this only
        refuses to begin where it would take what loaded models and running requests need."""
        available, needed = self._models.free_bytes, max(plan.step_bytes, plan.pass_bytes) + PROCESS_BYTES
        if available is not None and available < needed:
            raise InvalidRequest(
                f"{format_bytes(needed)} of memory are needed, and {format_bytes(available)} are free: unload a model",
                param="model",
            )

    async def _run(self, job: QuantJob, source: ModelSource) -> None:
        _log.info("quantising %s as %s", job.model, job.name)
        assert self._quantiser is not None
        try:
            if job.plan is None:
                job.plan = await self._work(job, self._quantiser.plan)
                job.wish.check(job.plan, source)
                self._check_room(job.plan)
            job.receipt = await self._work(job, self._quantiser.run)
            job.end = JobState.DONE
        except _Stopped:
            job.end = JobState.CANCELLED
        except (DomainError, OSError) as error:
            job.problem, job.end = str(error), JobState.FAILED
        except Exception as error:
            _log.exception("quantising %s failed", job.model)
            job.problem, job.end = f"quantising failed: {type(error).__name__}", JobState.FAILED
        problem = f": {job.problem}" if job.problem else ""
        _log.info("quantising %s as %s: %s%s", job.model, job.name, job.state.value, problem)
        if job.end is JobState.FAILED:
            self._events.emit(FaultObserved("quantise", f"{job.name}{problem}", self._clock.now_ns()))

    async def _work(self, job: QuantJob, work: Callable[[QuantOrder, Callable[[QuantProgress], None]], T]) -> T:
        job.report(job.progress)  # it may be cancelled already
        return await self._lane.run(work, job.order, job.report)


def _remove(copy: QuantCopy, held: Sequence[ModelSource]) -> None:
    """Blocks on the disk."""
    users = [source.id for source in held if is_same_folder(source.path, copy.folder)]
    if users:
        raise InvalidRequest(f"{', '.join(users)} is loaded: unload it first", param="name")
    try:
        shutil.rmtree(copy.folder)
    except OSError as error:
        raise ServerUnavailable(f"{copy.name} is not removed, or not whole: {error.strerror}") from None
