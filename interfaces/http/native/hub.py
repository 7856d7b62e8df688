"""GET /admin/api/hub and /hub/model, GET and POST /admin/api/pulls, DELETE /admin/api/pulls/{id} and
/admin/api/models/{id}: models of the hub, their downloads and their removal. For admins."""

from typing import Annotated, Any

from litestar import Request, delete, get
from litestar.datastructures import CacheControlHeader
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from msgspec import Struct

from application.use_cases.hub_models import Candidate, HubModels, Pull
from domain.ids import ModelId
from interfaces.http.answering.answering import json_route
from interfaces.http.answering.documented import errors
from interfaces.http.incoming.request_context import RequestContext, admins_only, changes_allowed, context_of
from interfaces.http.native.requests import PREFIX

MAX_QUERY_CHARS = 200


class CandidateBody(Struct):
    """A model of the hub. `bytes`: of its weights, null if the hub does not say it. `context_length`: of a suggested
    one, the longest that the memory here has room for, with a `note`. `here`: it needs no download. `problem`: why it
    cannot be served; `memory`: by how much it exceeds the memory here; both are empty if there is nothing to say."""

    id: str
    bytes: int | None
    downloads: int | None
    gated: bool
    context_length: int | None
    note: str
    here: bool
    problem: str
    memory: str


class CandidateListBody(Struct):
    data: list[CandidateBody]


class NeedBody(Struct):
    """The room that a download takes, in bytes: `missing` of the files, `free` on the disk of `cache`, the hub's cache.
    `problem`: why it is refused; `memory`: as of a candidate."""

    id: str
    missing: int
    weights: int
    free: int
    cache: str
    problem: str
    memory: str


class PullBody(Struct):
    """A download. `state`: `running`, `cancelling`, `cancelled`, `done` or `failed` with its `problem`."""

    id: int
    model: str
    state: str
    done_bytes: int
    total_bytes: int
    problem: str


class PullListBody(Struct):
    """The downloads since the start, the last first."""

    data: list[PullBody]


class PullOrder(Struct, forbid_unknown_fields=True):
    """`beyond_memory`: download weights that exceed the memory here, too."""

    model: str
    beyond_memory: bool = False


class RemovedBody(Struct):
    id: str
    bytes: int


def hub_routes(hub: HubModels, may_change: bool) -> list[HTTPRouteHandler]:
    """The handlers. Without `may_change` all are refused."""
    guards = [admins_only, changes_allowed(may_change)]
    no_store = CacheControlHeader(no_store=True)

    @get(
        PREFIX + "/hub",
        guards=guards,
        cache_control=no_store,
        operation_id="searchHub",
        responses=errors(400, 401, 503),
    )
    async def search(
        words: Annotated[str, Parameter(query="query", max_length=MAX_QUERY_CHARS)] = "",
    ) -> CandidateListBody:
        return CandidateListBody([_candidate(one) for one in await hub.search(words.strip())])

    @get(
        PREFIX + "/hub/model",
        guards=guards,
        cache_control=no_store,
        operation_id="readHubModel",
        responses=errors(400, 401, 404, 503),
    )
    async def read_need(model: Annotated[str, Parameter(max_length=MAX_QUERY_CHARS)]) -> NeedBody:
        need = await hub.need(ModelId(model))
        size = need.size
        return NeedBody(
            model, size.missing_bytes, size.weight_bytes, size.free_bytes, size.cache, need.problem, need.memory
        )

    @json_route(PREFIX + "/pulls", "pullModel", PullOrder, guards=guards)
    async def pull(body: PullOrder, context: RequestContext) -> PullBody:
        context.client.check_model(body.model)
        return _pull(await hub.pull(ModelId(body.model), beyond_memory=body.beyond_memory))

    @get(PREFIX + "/pulls", guards=guards, cache_control=no_store, operation_id="listPulls", responses=errors(401))
    async def list_pulls() -> PullListBody:
        return PullListBody([_pull(one) for one in hub.pulls()])

    @delete(
        PREFIX + "/pulls/{number:int}",
        guards=guards,
        status_code=200,
        operation_id="cancelPull",
        responses=errors(401, 404),
    )
    async def cancel(number: int) -> PullBody:
        return _pull(hub.cancel(number))

    @delete(
        PREFIX + "/models/{model_id:path}",
        guards=guards,
        status_code=200,
        operation_id="deleteModel",
        responses=errors(400, 401, 404, 503),
    )
    async def remove(model_id: str, request: Request[Any, Any, Any]) -> RemovedBody:
        id = ModelId(model_id.removeprefix("/"))
        context_of(request.scope).client.check_model(id)
        return RemovedBody(id, await hub.remove(id))

    return [search, read_need, pull, list_pulls, cancel, remove]


def _candidate(one: Candidate) -> CandidateBody:
    match = one.match
    return CandidateBody(
        match.id,
        match.weight_bytes or None,
        match.num_downloads or None,
        match.is_gated,
        one.context_length,
        one.note,
        one.is_here,
        one.problem,
        one.memory,
    )


def _pull(pull: Pull) -> PullBody:
    now = pull.progress
    return PullBody(pull.id, pull.model, pull.state.value, now.done_bytes, now.total_bytes, pull.problem)
