"""POST /admin/api/quantise/plan, GET and POST /admin/api/quantise, DELETE /admin/api/quantise/{id}, GET
/admin/api/quantise/copies and DELETE /admin/api/quantise/copies/{name}: quantised copies of models. For admins."""

from typing import Any

from litestar import Request, delete, get
from litestar.datastructures import CacheControlHeader
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.ports.quantiser import QuantQuality
from application.services.quantised_copies import QuantCopy
from application.use_cases.quantise import Quantise, QuantJob, QuantWish
from domain.byte_size import ByteSize
from domain.errors import InvalidRequest, require
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from domain.models.quantisation import Quantisation, QuantPlan
from interfaces.http.answering.answering import json_route
from interfaces.http.answering.documented import errors
from interfaces.http.errors import renamed
from interfaces.http.incoming.request_context import RequestContext, admins_only, changes_allowed, context_of
from interfaces.http.native.hub import RemovedBody
from interfaces.http.native.requests import PREFIX

_PATH = PREFIX + "/quantise"

_MAX_BYTES = 2**50

_MAX_SIZE_CHARS = 32

_MAX_COPIED = 100


class QuantiseOrder(Struct, forbid_unknown_fields=True):
    """What to quantise, and how. `mode`: empty for affine. `group`: values that share a scale. `recipe`: empty for one
    form. `rules`: those of a recipe's file. `size`: the most bytes of the weights, also as text (`6GB`). `name`: of
    the copy, empty for one that says how it was made. `force`: also where a model loses much. `allow_plain`: also where
    many weights cannot be quantised. `check`: compare the copy with its source."""

    model: str
    bits: int | None = None
    mode: str = ""
    group: int | None = None
    recipe: str = ""
    rules: dict[str, Any] = {}
    size: int | str | None = None
    name: str = ""
    force: bool = False
    allow_plain: bool = False
    check: bool = True

    def wish(self) -> QuantWish:
        """Raises InvalidRequest."""
        form = Quantisation.of(self.mode, self.bits, self.group)
        flags = self.force, self.allow_plain, self.check
        return QuantWish(form, self.recipe, self.rules, _bytes(self.size), self.name, *flags)

    def wire_names(self) -> dict[str, str]:
        """The names of fields here by the domain's."""
        return {"out": "name"} | ({"recipe": "rules"} if self.rules and not self.recipe else {})


class PlanBody(Struct):
    """A plan of what is written. `forms`: the number of weights by form. `step_bytes`: the most memory that a step
    takes, one of measuring or comparing included. `free_bytes`: on the disk. `copied`: the first names of the tensors
    that are copied as they are, `num_copied` in all."""

    name: str
    bytes: int
    bits_per_weight: float
    forms: dict[str, int]
    step_bytes: int
    free_bytes: int | None
    shards: int
    copied: list[str]
    num_copied: int
    copied_bytes: int


class QualityBody(Struct):
    """The copy against its source. `kl`: in nats a token; `agreement`: the share of positions with the same likeliest
    token. Null where it is no number."""

    kl: float
    agreement: float
    perplexity: float
    source_perplexity: float
    tokens: int


class JobBody(Struct):
    """A job. `state`: `running`, `cancelling`, `cancelled`, `done` or `failed` with its `problem`. `done` of `total`:
    bytes of `reading the source` and `writing`, layers of `measuring` and `checking`, the phases. `bytes`: of the
    copy, null before a measured recipe is planned. `note`: why a finished one has no `quality`. `order`: as it was
    given, to continue it."""

    id: int
    model: str
    name: str
    state: str
    phase: str
    done: int
    total: int
    problem: str
    bytes: int | None
    bits_per_weight: float | None
    quality: QualityBody | None
    note: str
    order: QuantiseOrder


class JobListBody(Struct):
    """The jobs since the start, the last first."""

    data: list[JobBody]


class CopyBody(Struct):
    """A copy. `state`: `whole`, `partial` (a stopped job left it; the same order continues it) or `running`. `source`:
    the model that it was made of, by its folder."""

    name: str
    state: str
    bytes: int
    source: str
    recipe: str
    bits_per_weight: float | None
    quality: QualityBody | None
    note: str


class SourceBody(Struct):
    """A model. `problem`: why it has no quantised copies; empty if it may have."""

    id: str
    bytes: int
    problem: str


class CopyListBody(Struct):
    """The copies in the first folder of `model.dirs`, and the models to make others of."""

    data: list[CopyBody]
    sources: list[SourceBody]


def quantise_routes(quantise: Quantise, may_change: bool) -> list[HTTPRouteHandler]:
    """The handlers. Without `may_change` all are refused."""
    guards = [admins_only, changes_allowed(may_change)]
    no_store = CacheControlHeader(no_store=True)

    @json_route(_PATH + "/plan", "planQuantisation", QuantiseOrder, guards=guards)
    async def plan(body: QuantiseOrder, context: RequestContext) -> PlanBody:
        context.client.check_model(body.model)
        with renamed(body.wire_names()):
            order, planned = await quantise.plan(ModelId(body.model), body.wish())
        return _plan(order.out.rpartition("/")[2], planned)

    @json_route(_PATH, "quantiseModel", QuantiseOrder, guards=guards)
    async def start(body: QuantiseOrder, context: RequestContext) -> JobBody:
        context.client.check_model(body.model)
        with renamed(body.wire_names()):
            return _job(await quantise.start(ModelId(body.model), body.wish()))

    @get(_PATH, guards=guards, cache_control=no_store, operation_id="listQuantisations", responses=errors(401))
    async def list_jobs() -> JobListBody:
        return JobListBody([_job(one) for one in quantise.jobs()])

    @delete(
        _PATH + "/{number:int}",
        guards=guards,
        status_code=200,
        operation_id="cancelQuantisation",
        responses=errors(401, 404),
    )
    async def cancel(number: int) -> JobBody:
        return _job(quantise.cancel(number))

    @get(
        _PATH + "/copies", guards=guards, cache_control=no_store, operation_id="listCopies", responses=errors(401, 503)
    )
    async def list_copies() -> CopyListBody:
        copies = [_copy(one, is_running=quantise.is_being_made(one.name)) for one in await quantise.copies()]
        return CopyListBody(copies, [_source(*one) for one in await quantise.sources()])

    @delete(
        _PATH + "/copies/{name:str}",
        guards=guards,
        status_code=200,
        operation_id="removeCopy",
        responses=errors(400, 401, 404, 503),
    )
    async def remove(name: str, request: Request[Any, Any, Any]) -> RemovedBody:
        context_of(request.scope).client.check_model(name)
        return RemovedBody(name, await quantise.remove(name))

    return [plan, start, list_jobs, cancel, list_copies, remove]


def _bytes(size: int | str | None) -> int | None:
    if isinstance(size, str):
        try:
            size = ByteSize.parse(size).num_bytes or 0 if len(size) <= _MAX_SIZE_CHARS else 0
        except InvalidRequest:
            size = 0
    require(size is None or 0 < size <= _MAX_BYTES, "size", "must be a number of bytes, or a text like 6GB or 3.5GiB")
    return size


def _plan(name: str, plan: QuantPlan) -> PlanBody:
    return PlanBody(
        name,
        plan.num_bytes,
        round(plan.bits_per_weight, 3),
        plan.forms,
        max(plan.step_bytes, plan.pass_bytes),
        plan.free_bytes,
        plan.num_shards,
        list(plan.copied[:_MAX_COPIED]),
        len(plan.copied),
        plan.copied_bytes,
    )


def _job(job: QuantJob) -> JobBody:
    now, wish, receipt = job.progress, job.wish, job.receipt
    plan = receipt.plan if receipt is not None else job.plan
    form, flags = wish.form, (wish.force, wish.allow_plain, wish.checks)
    given = form.bits, form.mode, form.group, wish.recipe, dict(wish.rules), wish.most_bytes, job.name
    return JobBody(
        job.id,
        job.model,
        job.name,
        job.state.value,
        now.phase.value,
        now.done,
        now.total,
        job.problem,
        plan.num_bytes if plan is not None else None,
        round(plan.bits_per_weight, 3) if plan is not None else None,
        _quality(receipt.quality) if receipt is not None else None,
        receipt.note if receipt is not None else "",
        QuantiseOrder(job.model, *given, *flags),
    )


def _quality(quality: QuantQuality | None) -> QualityBody | None:
    if quality is None:
        return None
    figures = quality.kl, quality.agreement, quality.perplexity, quality.source_perplexity
    return QualityBody(*figures, quality.num_tokens)


def _copy(copy: QuantCopy, *, is_running: bool) -> CopyBody:
    state = "running" if is_running else "partial" if copy.is_partial else "whole"
    told = copy.source, copy.recipe, copy.bits_per_weight, _quality(copy.quality), copy.note
    return CopyBody(copy.name, state, copy.num_bytes, *told)


def _source(source: ModelSource, problem: str) -> SourceBody:
    return SourceBody(source.id, source.file_bytes, problem)
