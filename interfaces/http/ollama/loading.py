"""Bodies that ask for nothing: their model is loaded, or unloaded where it is to be kept for no time."""

from typing import Annotated, Any, TypeAlias

from domain.errors import ModelNotFound, NotAllowed
from domain.ids import ModelId
from domain.printable import printable
from domain.request.request import GenerationRequest, TextPrompt
from interfaces.http.fields.parameters import mapped
from interfaces.http.incoming.request_context import RequestContext

KeepAlive: TypeAlias = Annotated[
    Any,
    mapped(
        "0 in a request for nothing unloads the model, for which a key needs `admin = true`; else models stay loaded"
        " until another needs the room"
    ),
]

_LATEST = ":latest"


def model_id(name: str | None, default: str) -> ModelId:
    return ModelId((name or default).removesuffix(_LATEST))


async def loaded_or_unloaded(context: RequestContext, name: str | None, keep_alive: object) -> str:
    """Loads the model, or begins to unload it. Returns the `done_reason`. Raises any DomainError."""
    services = context.services
    request_id, model = services.ids.request_id("ollama"), model_id(name, services.default_model)
    (request,) = await context.admit([GenerationRequest(request_id, model, TextPrompt(""))])
    if not _is_zero(keep_alive):
        await services.models.load(request.model)
        return "load"
    if not context.client.admin:
        raise NotAllowed(
            f"keep_alive: the key '{context.client.name}' may not unload a model; use a key with admin = true",
            param="keep_alive",
        )
    entry = await services.models.one(request.model)
    if entry is None:
        raise ModelNotFound(f"model '{printable(request.model)}' not found", param="model")
    if entry.description is not None:
        services.models.unload(request.model)
    return "unload"


def _is_zero(keep_alive: object) -> bool:
    """`keep_alive`: seconds, or a duration as Go writes it, such as `1h30m`."""
    if isinstance(keep_alive, str):
        return "0" in keep_alive and not keep_alive.strip("0.hmnsuµ")
    return keep_alive == 0 and not isinstance(keep_alive, bool)
