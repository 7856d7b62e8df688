"""GET /api/tags, /api/ps and /api/version, POST /api/show and /api/pull: the list of models.

No weights are read: the digest is one of a model's name and age, and the number of parameters is estimated from the
length of their files. A size is that of the loaded weights, or else of their files.
"""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from litestar import get
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.use_cases.models import ModelEntry
from domain.errors import ModelNotFound
from domain.models.capability import Capability
from domain.printable import printable
from interfaces.http.answering.answering import json_route, models_for
from interfaces.http.answering.documented import errors
from interfaces.http.incoming.request_context import RequestContext, context_of
from interfaces.http.ollama.answer import OllamaError
from interfaces.http.ollama.loading import model_id
from interfaces.http.services import Services

SPOKEN_VERSION = "0.12.11"
"""The version of Ollama that these routes follow, by which clients decide what they may use."""

CAPABILITIES = {
    Capability.GENERATE: ["completion", "tools", "thinking"],
    Capability.EMBED: ["embedding"],
    Capability.SCORE: ["rerank"],
    Capability.SEE: ["vision"],
}
"""The names of capabilities, of the routes; a model's template and training may have fewer."""

_NEVER = "2318-01-01T00:00:00Z"
"""The time at which an idle model is unloaded: never, unless its room is needed."""


class Details(Struct):
    """The properties of a model, empty where its config.json does not say. `family`: the model type.
    `parameter_size`: an estimate, as `8.0B`. `quantization_level`: of its weights, as `Q4` or `BF16`."""

    family: str
    families: list[str]
    quantization_level: str
    parameter_size: str
    parent_model: str = ""
    format: str = "safetensors"


class TaggedModel(Struct):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    capabilities: list[str]


class RunningModel(Struct):
    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: str
    size_vram: int
    context_length: int


class TagsBody(Struct):
    models: list[TaggedModel]


class RunningBody(Struct):
    models: list[RunningModel]


class ModelNamed(Struct):
    """A request about one model. `name`: the field that older clients have for `model`."""

    model: str | None = None
    name: str | None = None


class PullBody(Struct):
    status: str = "success"


class ShowBody(Struct):
    """One model in detail. `model_info` describes an embedded model. Once the model is loaded, `model_info` and
    `parameters` have the context length, `parameters` the defaults of requests, and `template` is the chat template, in
    Jinja."""

    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    modelfile: str
    parameters: str
    template: str
    license: str = ""


class VersionBody(Struct):
    version: str


def ollama_model_routes(services: Services) -> list[HTTPRouteHandler]:
    unauthorized = errors(401, error_type=OllamaError)

    @get("/api/tags", operation_id="ollamaTags", responses=unauthorized)
    async def tags(request: Request[Any, Any, Any]) -> TagsBody:
        return TagsBody([_tagged(entry) for entry in await models_for(context_of(request.scope))])

    @get("/api/ps", operation_id="ollamaPs", responses=unauthorized)
    async def ps(request: Request[Any, Any, Any]) -> RunningBody:
        entries = await models_for(context_of(request.scope))
        return RunningBody([body for entry in entries if (body := _running(entry))])

    @get(
        "/api/version",
        operation_id="ollamaVersion",
        sync_to_thread=False,
        responses=unauthorized,
    )
    def version() -> VersionBody:
        return VersionBody(SPOKEN_VERSION)

    async def named(body: ModelNamed, context: RequestContext) -> ModelEntry:
        id = model_id(body.model or body.name, services.default_model)
        context.client.check_model(id)
        entry = await services.models.one(id)
        if entry is None:
            raise ModelNotFound(f"model '{printable(id)}' not found")
        return entry

    @json_route("/api/show", "ollamaShow", ModelNamed, error_type=OllamaError)
    async def show(body: ModelNamed, context: RequestContext) -> ShowBody:
        entry = await named(body, context)
        info: dict[str, Any] = {"general.description": entry.source.note} if entry.source.note else {}
        if (model := entry.description) is not None:
            info |= {
                "general.architecture": model.model_type,
                f"{model.model_type}.context_length": model.context_length,
                f"{model.model_type}.vocab_size": model.vocab_size,
            }
        parameters = _parameters(entry)
        template = None if entry.tokenizer is None else entry.tokenizer.template_features
        modelfile = "\n".join((f"FROM {entry.source.id}", *(f"PARAMETER {line}" for line in parameters)))
        return ShowBody(
            _details(entry),
            info,
            _capabilities(entry),
            _modified_at(entry),
            modelfile,
            "\n".join(parameters),
            "" if template is None else template.source,
        )

    @json_route("/api/pull", "ollamaPull", ModelNamed, error_type=OllamaError)
    async def pull(body: ModelNamed, context: RequestContext) -> PullBody:
        """Downloads nothing: a model that is here is up to date, any other is not found."""
        await named(body, context)
        return PullBody()

    return [tags, ps, version, show, pull]


def _tagged(entry: ModelEntry) -> TaggedModel:
    id = entry.source.id
    can = _capabilities(entry)
    return TaggedModel(id, id, _modified_at(entry), entry.num_bytes, _digest(entry), _details(entry), can)


def _capabilities(entry: ModelEntry) -> list[str]:
    return [name for one, names in CAPABILITIES.items() if one in entry.source.use.capabilities for name in names]


def _running(entry: ModelEntry) -> RunningModel | None:
    id, model = entry.source.id, entry.description
    if model is None:
        return None
    size, length = model.weight_bytes, model.context_length
    return RunningModel(id, id, size, _digest(entry), _details(entry), _NEVER, size, length)


def _details(entry: ModelEntry) -> Details:
    form, model = entry.source.form, entry.description
    family = form.family if model is None else model.model_type
    quantization = form.quantization or ("" if model is None else model.dtype)
    return Details(family, [family] if family else [], quantization, form.parameters(entry.source.file_bytes))


def _parameters(entry: ModelEntry) -> list[str]:
    """The lines of a Modelfile's parameters."""
    if entry.description is None:
        return []
    values = {"num_ctx": entry.description.context_length, **entry.sampling.set_values()}
    return [f"{name} {value}" for name, value in values.items()]


def _digest(entry: ModelEntry) -> str:
    return sha256(f"{entry.source.id}\0{entry.source.created_s}".encode()).hexdigest()


def _modified_at(entry: ModelEntry) -> str:
    return f"{datetime.fromtimestamp(entry.source.created_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
