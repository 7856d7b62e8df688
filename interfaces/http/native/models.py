"""GET /models, POST /models/load, /models/unload, /models/pin, /models/unpin: models loaded and unloaded by hand. For
admins.

The paths of the first three are llama.cpp's router's; the bodies are Cairn's own.
"""

from collections.abc import Awaitable, Callable

from litestar import get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.services.live_figures import LiveFigures
from application.services.text_side.models.model_finder import ModelStatus
from application.use_cases.models import ModelEntry
from domain.ids import ModelId
from domain.models.model_card import ModelDescription
from domain.models.state_layout import StateKind, StateLayout
from domain.request.request import Usage
from interfaces.http.answering.answering import json_route
from interfaces.http.answering.documented import errors
from interfaces.http.incoming.request_context import RequestContext, admins_only, changes_allowed
from interfaces.http.services import Services


class ModelNamed(Struct, forbid_unknown_fields=True):
    model: str


class StandingBody(Struct):
    """A model in or out of memory. `state`: `absent`, `loading`, `loaded` or `unloading`. `requests`: that hold it now;
    one that is to be unloaded goes when there are none. `idle_ttl_s`: it is unloaded after so long without one; null:
    only to make room."""

    id: str
    state: str
    pinned: bool
    requests: int
    idle_ttl_s: int | None


class LayersBody(Struct):
    """So many `layers` hold state of this kind: `sliced` (all tokens), `windowed` (the last `window` tokens),
    `recurrent` (one state for all), or `unsupported`, which keeps the model out of reuse."""

    kind: StateKind
    window: int | None
    layers: int


class SpeculationBody(Struct):
    """The speculative decoding of a loaded model. `mode`: the drafters that may be used; `off` too where drafts cannot
    be verified. `own_drafter`: its head (`mtp`) or draft model (`draft`), else null; `note`: why the head in its files
    is not used. Since the start: `proposed` and `accepted` tokens by drafter, and the output tokens that a decode step
    gives a request, null before the first."""

    mode: str
    own_drafter: str | None
    note: str
    proposed: dict[str, int]
    accepted: dict[str, int]
    tokens_per_step: float | None


class ManagedBody(Struct):
    """A model that can be managed. `bytes`: of its weights as they are loaded, or else as they lie in its files.
    `adapter`: folder of the adapter over them, else null. `origin`: `embedded`, `hub` (its cache) or `local`.
    `sampling`: what requests have that do not say, once it is loaded. `layout`, `speculation`: null before.
    `memory`: by how much it exceeds the memory here, and which part of it is experts; empty if it may fit."""

    standing: StandingBody
    bytes: int
    context_length: int | None
    adapter: str | None
    origin: str
    sampling: dict[str, float]
    layout: list[LayersBody] | None
    speculation: SpeculationBody | None
    memory: str = ""


class RoomBody(Struct):
    """Memory in bytes. `limit`: what may be held in all, null without a limit. `fixed`: held independently of models.
    `requests`: held by those that run, with their growth."""

    limit: int | None
    fixed: int
    requests: int


class ManagedListBody(Struct):
    """`may_change`: false where the settings forbid changes over HTTP."""

    data: list[ManagedBody]
    room: RoomBody
    may_change: bool


def managed_model_routes(services: Services, may_change: bool) -> list[HTTPRouteHandler]:
    """The handlers. `may_change`: without it all but the list are refused."""
    models, guards = services.models, [admins_only, changes_allowed(may_change)]

    @get("/models", guards=[admins_only], operation_id="manageModels", responses=errors(401, 403))
    async def list_models() -> ManagedListBody:
        room = models.room
        entries = await models.all()
        return ManagedListBody(
            [_managed(one, services.figures, await models.why_too_large(one)) for one in entries],
            RoomBody(room.limit_bytes, room.fixed_bytes, room.busy_bytes),
            may_change,
        )

    def action(name: str, work: Callable[[ModelId], ModelStatus | Awaitable[ModelStatus]]) -> HTTPRouteHandler:
        @json_route(f"/models/{name}", f"{name}Model", ModelNamed, guards=guards)
        async def act(body: ModelNamed, context: RequestContext) -> StandingBody:
            context.client.check_model(body.model)
            id = ModelId(body.model)
            status = work(id)
            return _standing_body(id, status if isinstance(status, ModelStatus) else await status)

        return act

    return [
        list_models,
        action("load", lambda id: models.load(id)),
        action("unload", lambda id: models.unload(id)),
        action("pin", lambda id: models.pin(id)),
        action("unpin", lambda id: models.unpin(id)),
    ]


def _standing_body(id: ModelId, status: ModelStatus) -> StandingBody:
    return StandingBody(id, status.residence.value, status.is_pinned, status.num_leases, status.idle_ttl_s)


def _managed(entry: ModelEntry, figures: LiveFigures, memory: str) -> ManagedBody:
    source, model = entry.source, entry.description
    return ManagedBody(
        _standing_body(source.id, entry.status),
        entry.num_bytes,
        None if model is None else model.context_length,
        source.adapter or None,
        source.origin.value,
        dict(entry.sampling.set_values()),
        None if model is None else _layers(model.layout),
        None if model is None else _speculation(model, figures.usages().get(source.id, Usage(0, 0))),
        memory,
    )


def _speculation(model: ModelDescription, usage: Usage) -> SpeculationBody:
    num_steps = usage.completion_tokens - usage.num_accepted
    return SpeculationBody(
        model.speculation.value,
        None if model.own_drafter is None else model.own_drafter.value,
        model.drafter_note,
        dict(usage.proposed),
        {drafter: usage.accepted.get(drafter, 0) for drafter in usage.proposed},
        round(usage.completion_tokens / num_steps, 3) if num_steps > 0 else None,
    )


def _layers(layout: StateLayout) -> list[LayersBody]:
    return [LayersBody(kind, window, num) for (kind, window), num in layout.num_layers.items()]
