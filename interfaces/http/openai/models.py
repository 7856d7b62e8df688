"""GET /v1/models and GET /v1/models/{id}: everything that can be served, loaded or not."""

from typing import Any

from litestar import get
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct, field

from application.use_cases.list_models import ModelEntry
from domain.errors import ModelNotFound
from domain.ids import ModelId
from domain.model_card import ModelDescription
from domain.shown import shown
from interfaces.http.documented import errors
from interfaces.http.openai.errors import ErrorBody
from interfaces.http.services import Services
from interfaces.http.start import models_for, naming_what_is_served
from interfaces.http.visit import visit_of


class LoadedBody(Struct):
    """Known once a model is loaded. `prefix_reuse`: whether a prompt's beginning can be taken from the cache; if not,
    `prefix_reuse_note` says why."""

    model_type: str
    dtype: str
    context_length: int
    vocab_size: int
    weight_bytes: int
    decode_mode: str
    decode_note: str
    prefix_reuse: bool
    prefix_reuse_note: str


class ModelBody(Struct, tag_field="object", tag="model"):
    """`cairn` is null until the model is loaded, which its first request does."""

    id: str
    created: int
    owned_by: str
    cairn: LoadedBody | None


class ModelListBody(Struct, tag_field="object", tag="list"):
    data: list[ModelBody] = field(default_factory=list[ModelBody])


def model_routes(services: Services) -> list[HTTPRouteHandler]:
    """The handlers, bound to what they need."""

    @get("/v1/models", operation_id="listModels", responses=errors(ErrorBody, 401))
    async def list_models(request: Request[Any, Any, Any]) -> ModelListBody:
        return ModelListBody([_body(entry) for entry in await models_for(services, visit_of(request.scope).client)])

    @get("/v1/models/{model_id:path}", operation_id="retrieveModel", responses=errors(ErrorBody, 401, 404))
    async def retrieve_model(model_id: str, request: Request[Any, Any, Any]) -> ModelBody:
        id, client = ModelId(model_id.removeprefix("/")), visit_of(request.scope).client
        client.check_model(id)
        entry = await services.list_models.one(id)
        if entry is None:
            missing = ModelNotFound(f"no model named '{shown(id)}' is here")
            raise await naming_what_is_served(services, missing, client)
        return _body(entry)

    return [list_models, retrieve_model]


def _body(entry: ModelEntry) -> ModelBody:
    source, model = entry.source, entry.description
    return ModelBody(
        source.id, source.created_s, source.owned_by, None if model is None else _loaded(model, entry.reuse_note)
    )


def _loaded(model: ModelDescription, reuse_note: str) -> LoadedBody:
    return LoadedBody(
        model.model_type,
        model.dtype,
        model.context_length,
        model.vocab_size,
        model.weight_bytes,
        model.decode_mode.value,
        model.decode_note,
        not reuse_note,
        reuse_note,
    )


__all__ = ("ModelBody", "ModelListBody", "model_routes")
