"""Quantised copies of models, made beside the service: one at a time, in a process of its own, at low priority.

    running ──► done, or failed
       └──► cancelling ──► cancelled

Whole shards of a cancelled or failed copy stay, and the same order continues them, until they are removed.
"""

import asyncio
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any, cast

from application.ports.quantiser import (
    RECEIPT,
    Quantiser,
    QuantOrder,
    QuantPhase,
    QuantProgress,
    QuantReceipt,
    name_of_partial,
    partial_name,
)
from application.services.lane import Lane
from application.use_cases.models import ModelEntry, Models
from domain.byte_size import format_bytes
from domain.errors import DomainError, InvalidRequest, ModelNotFound, RequestNotFound, require
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from domain.models.quantisation import MEASURED, MIXED, MODES, Quantisation, QuantPlan
from domain.models.residency import Residence
from domain.printable import printable

PROCESS_BYTES = 512 * 2**20
"""The memory of the process beside the largest step."""

MAX_JOBS = 16
"""The jobs that are remembered, the last ones."""

_log = logging.getLogger("cairn")


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
        recipe = self.recipe or (MEASURED if self.most_bytes is not None else "")
        require(
            recipe in ("", MEASURED, *MIXED) or bool(self.rules),
            "recipe",
            f"must be {MEASURED}, {', '.join(MIXED)}, or a file",
        )
        require(self.most_bytes is None or recipe == MEASURED, "size", f"needs the recipe {MEASURED}")
        require(
            not recipe or self.form.mode == "affine" or bool(self.rules),
            "mode",
            f"must be affine with the recipe {recipe}",
        )
        require(not source.adapter, "model", f"{source.id} has an adapter: quantise the model without it")
        name = self.name or _name(source, self.form, recipe, self.most_bytes)
        require(_is_plain(name), "name", "must be a plain name without a slash")
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
    base = Path(source.id).name or "model"
    return "-".join(filter(None, (base, how, Path(recipe).stem)))


def _is_plain(name: str) -> bool:
    return printable(name) == name and not name.startswith(".") and not {"/", "\\", "\0"} & set(name)


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
    """`problem`: of a failed one. `receipt`: of a finished one. `end`: None while it runs."""

    id: int
    model: ModelId
    name: str
    order: QuantOrder
    progress: QuantProgress = QuantProgress(QuantPhase.READING)
    problem: str = ""
    receipt: QuantReceipt | None = None
    end: JobState | None = None
    stop: Event = field(default_factory=Event)

    @property
    def state(self) -> JobState:
        return self.end or (JobState.CANCELLING if self.stop.is_set() else JobState.RUNNING)

    def report(self, now: QuantProgress) -> None:
        """Takes the progress, on the job's thread. Raises to stop it."""
        if self.stop.is_set():
            raise _Stopped
        self.progress = now


@dataclass(frozen=True, slots=True)
class QuantCopy:
    """A copy in the model folder. `is_partial`: what a stopped job left, to be continued or removed."""

    name: str
    num_bytes: int
    is_partial: bool
    receipt: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Quantise:
    """Event loop only. `directory`: the folder of the copies, empty for none."""

    def __init__(self, quantiser: Quantiser, models: Models, directory: str) -> None:
        self._quantiser, self._models = quantiser, models
        self._directory = str(Path(directory).expanduser().absolute()) if directory else ""
        self._lane, self._folders = Lane("quantise", 1), Lane("quantised copies", 1)
        self._jobs: list[QuantJob] = []
        self._numbers = count(1)
        self._task: asyncio.Task[None] | None = None
        self._is_planning = False

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

    async def plan(self, id: ModelId, wish: QuantWish) -> tuple[QuantOrder, QuantPlan]:
        """Returns what a job would write. A measured recipe measures the model first, which takes a job. Raises
        InvalidRequest, ModelNotFound, ModelLoadFailed."""
        self._check_none_runs()
        source = (await self._entry(id)).source
        order = wish.order(source, self._directory)
        if order.recipe == MEASURED:
            raise InvalidRequest(f"recipe {MEASURED} is planned by its job: start it", param="recipe")
        self._is_planning = True
        try:
            plan = await self._lane.run(self._quantiser.plan, order, lambda _: None)
        finally:
            self._is_planning = False
        wish.check(plan, source)
        return order, plan

    async def start(self, id: ModelId, wish: QuantWish) -> QuantJob:
        """Begins a job. Raises as `plan`, and InvalidRequest where memory has no room beside loaded models."""
        self._check_none_runs()
        source = (await self._entry(id)).source
        order = wish.order(source, self._directory)
        if order.recipe != MEASURED:
            _, plan = await self.plan(id, wish)
            self._check_room(plan)
        self._check_none_runs()
        job = QuantJob(next(self._numbers), id, Path(order.out).name, order)
        self._jobs = [*self._jobs, job][-MAX_JOBS:]
        self._task = asyncio.create_task(self._run(job, wish, source))
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
        return await self._folders.run(_copies, self._directory)

    async def remove(self, name: str) -> int:
        """Removes a copy, or what a stopped job left of it, and returns its bytes. Raises ModelNotFound, InvalidRequest
        for one that is loaded or being made."""
        if any(job.name == name and job.end is None for job in self._jobs):
            raise InvalidRequest(f"{printable(name)} is being made: cancel that first", param="name")
        found = next((copy for copy in await self.copies() if copy.name == name), None)
        if found is None:
            raise ModelNotFound(f"no quantised copy '{printable(name)}' here", param="name")
        folder = Path(self._directory) / (partial_name(name) if found.is_partial else name)
        users = [
            entry.source.id
            for entry in await self._models.all()
            if Path(entry.source.path) == folder and entry.status.residence is not Residence.ABSENT
        ]
        if users:
            raise InvalidRequest(f"{', '.join(users)} is loaded: unload it first", param="name")
        await self._folders.run(shutil.rmtree, folder)
        return found.num_bytes

    async def _entry(self, id: ModelId) -> ModelEntry:
        entry = await self._models.one(id)
        if entry is None:
            raise ModelNotFound(f"no model '{printable(id)}' here", param="model")
        return entry

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
                f"{format_bytes(needed)} of memory are needed, and {format_bytes(available)} are free: unload a model"
            )

    async def _run(self, job: QuantJob, wish: QuantWish, source: ModelSource) -> None:
        try:
            if job.order.recipe == MEASURED:
                plan = await self._lane.run(self._quantiser.plan, job.order, job.report)
                wish.check(plan, source)
                self._check_room(plan)
            job.receipt = await self._lane.run(self._quantiser.run, job.order, job.report)
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


def _copies(directory: str) -> list[QuantCopy]:
    """The copies in a folder, by the receipt that each has, and what stopped jobs left there. Skips what cannot be
    read. Blocks on the disk."""
    found: list[QuantCopy] = []
    folders = sorted(Path(directory).glob("*")) if directory else []
    for folder in folders:
        partial = name_of_partial(folder.name)
        receipt = _receipt(folder / RECEIPT) if partial is None else dict[str, Any]()
        if folder.is_symlink() or not folder.is_dir() or receipt is None:
            continue
        name = partial or folder.name
        try:
            num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        except OSError:
            continue
        found.append(QuantCopy(name, num_bytes, partial is not None, receipt))
    return found


def _receipt(path: Path) -> Mapping[str, Any] | None:
    try:
        receipt: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return cast(dict[str, Any], receipt) if isinstance(receipt, dict) else None
