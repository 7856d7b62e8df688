"""GET /v1/models and GET /v1/models/{id}: everything that can be served, loaded or not. In Anthropic's form for clients
that send its header."""

from datetime import UTC, datetime
from typing import Any

from litestar import get
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct, field

from application.ports.tokenizer import Tokenizer
from application.use_cases.models import ModelEntry
from domain.errors import ModelNotFound
from domain.ids import ModelId
from domain.models.capability import Capability
from domain.models.model_card import ModelDescription
from domain.printable import printable
from interfaces.http.answering.answering import listing_models, models_for
from interfaces.http.answering.documented import errors
from interfaces.http.incoming.request_context import context_of
from interfaces.http.services import Services


class TemplateBody(Struct):
    """The features of a chat template. `late_system`: system messages after the first turn, in their place and as what
    they are."""

    tools: bool
    reasoning: bool
    late_system: bool


class LoadedBody(Struct):
    """The properties of a loaded model. `prefix_reuse`: whether a prompt's beginning can be taken from the cache; if
    not, `prefix_reuse_note` says why. `output_format`: how its answers are read. `chat_template`: what its template
    shows, null without one. `speculation`: the drafters that are used, `off` where drafts cannot be verified;
    `own_drafter`: its head (`mtp`) or draft model (`draft`), null for neither. `context_from`: where the length of its
    context comes from. `kv_bits`: in how many bits its keys and values of full attention are kept, `off` for as they
    are computed."""

    model_type: str
    dtype: str
    context_length: int
    context_from: str
    vocab_size: int
    weight_bytes: int
    decode_mode: str
    decode_note: str
    prefix_reuse: bool
    prefix_reuse_note: str
    output_format: str
    chat_template: TemplateBody | None
    speculation: str
    own_drafter: str | None
    kv_bits: str


class ModelBody(Struct, tag_field="object", tag="model"):
    """A model that can be served. `note`: a remark on the embedded models, which are used if none was chosen. `cairn`
    is null until the model is loaded, which its first request does. `state`: `absent`, `loading`, `loaded` or
    `unloading`. `bytes`: of its weights as they are loaded, or else as they lie in its files. `pinned`: never unloaded
    to make room. `capabilities`: what it answers, of `generate`, `embed`, `score` and `see`
    (images, beside one of the others). `embedding_size`: of its vectors."""

    id: str
    created: int
    owned_by: str
    note: str
    cairn: LoadedBody | None
    state: str = "absent"
    bytes: int = 0
    pinned: bool = False
    capabilities: list[str] = field(default_factory=list[str])
    embedding_size: int = 0


class ModelListBody(Struct, tag_field="object", tag="list"):
    data: list[ModelBody] = field(default_factory=list[ModelBody])


class AnthropicModel(Struct, tag_field="type", tag="model"):
    """A model in Anthropic's form. `max_input_tokens`: the context, null until the model is loaded."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    lifecycle: str = "active"


class AnthropicModelList(Struct):
    """All models on one page, whatever its requested size."""

    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


def model_routes(services: Services) -> list[HTTPRouteHandler]:
    @get("/v1/models", operation_id="listModels", responses=errors(401))
    async def list_models(request: Request[Any, Any, Any]) -> ModelListBody | AnthropicModelList:
        entries = await models_for(context_of(request.scope))
        if not _is_of_anthropic(request):
            return ModelListBody([_body(entry) for entry in entries])
        data = [_anthropic_body(entry) for entry in entries]
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return AnthropicModelList(data, first, last)

    @get("/v1/models/{model_id:path}", operation_id="retrieveModel", responses=errors(401, 404))
    async def retrieve_model(model_id: str, request: Request[Any, Any, Any]) -> ModelBody | AnthropicModel:
        id, context = ModelId(model_id.removeprefix("/")), context_of(request.scope)
        context.client.check_model(id)
        entry = await services.models.one(id)
        if entry is None:
            raise await listing_models(context, ModelNotFound(f"no model named '{printable(id)}' is here"))
        return _anthropic_body(entry) if _is_of_anthropic(request) else _body(entry)

    return [list_models, retrieve_model]


def _is_of_anthropic(request: Request[Any, Any, Any]) -> bool:
    return "anthropic-version" in request.headers


def _anthropic_body(entry: ModelEntry) -> AnthropicModel:
    id, created = entry.source.id, datetime.fromtimestamp(entry.source.created_s, UTC)
    context_length = None if entry.description is None else entry.description.context_length
    return AnthropicModel(id, id, f"{created:%Y-%m-%dT%H:%M:%SZ}", context_length)


def _body(entry: ModelEntry) -> ModelBody:
    source, model, tokenizer = entry.source, entry.description, entry.tokenizer
    loaded = None if model is None or tokenizer is None else _loaded(model, tokenizer, entry.reuse_note)
    status = entry.status
    return ModelBody(
        source.id,
        source.created_s,
        source.owned_by,
        source.note,
        loaded,
        status.residence.value,
        entry.num_bytes,
        status.is_pinned,
        [one.value for one in Capability if one in source.use.capabilities],
        source.use.size,
    )


def _loaded(model: ModelDescription, tokenizer: Tokenizer, reuse_note: str) -> LoadedBody:
    features = tokenizer.template_features
    return LoadedBody(
        model.model_type,
        model.dtype,
        model.context_length,
        model.context.origin,
        model.vocab_size,
        model.weight_bytes,
        model.decode_mode.value,
        model.decode_note,
        not reuse_note,
        reuse_note,
        tokenizer.output_format,
        None if features is None else TemplateBody(features.tools, features.reasoning, features.late_system),
        model.speculation.value,
        None if model.own_drafter is None else model.own_drafter.value,
        "off" if model.kv_bits is None else model.kv_bits.setting,
    )
