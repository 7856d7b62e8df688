"""The routes of the prefix cache: POST /v1/cache/explain, /warm and /clear, GET /v1/cache/stats.

The first two take the body of a chat, a response or a completion.
"""

from typing import Literal

from litestar import get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct
from msgspec.structs import asdict

from application.ports.document_store import DocumentUsage
from application.services.documents import Documents
from domain.errors import InvalidRequest, StoreUnresponsive
from interfaces.http.answering.answering import json_route
from interfaces.http.answering.documented import errors
from interfaces.http.errors import renamed
from interfaces.http.fields.prompt_body import PromptBodies, PromptBody
from interfaces.http.incoming.request_context import RequestContext, admins_only
from interfaces.http.native.bodies import (
    MemoryBody,
    PromptExplanation,
    TiersBody,
    memory_body,
    prompt_explanation,
    tiers_body,
)
from interfaces.http.services import Services


class ExplanationBody(Struct, tag_field="object", tag="cairn.explanation"):
    """The explanations of a request, one entry a prompt: a chat has one, a text completion may have several."""

    model: str
    prompts: list[PromptExplanation]


class PromptWarmed(Struct):
    """The counts of a warmed prompt. Tokens: prompt = reused + computed. `stored_tokens`: how many of them a restart
    would leave, at most all but the last; null when nothing is persisted."""

    prompt_tokens: int
    reused_tokens: int
    computed_tokens: int
    stored_tokens: int | None


class WarmedBody(Struct, tag_field="object", tag="cairn.warmed"):
    """The warmed prompts of a request, one entry each."""

    model: str
    prompts: list[PromptWarmed]


class ClearRequest(Struct, forbid_unknown_fields=True):
    """The choice of what to clear. Null and absent mean any; an unknown field is refused, because a typing error must
    not clear everything. `model`: its name, or the first digits of a namespace. `salt`: a `cache_salt`, empty for
    requests that name none; it is combined with the admin's key as in the admin's own requests. `tier`: `hot` evicts
    the hot tier alone, of all models and salts; what is stored stays."""

    model: str | None = None
    salt: str | None = None
    tier: Literal["hot"] | None = None


class ClearedBody(Struct, tag_field="object", tag="cairn.cleared"):
    """Records that were removed: from the hot tier, with the bytes of memory that they took; from the store and the
    queue in front of it, with their bytes in the store; stored responses and tool calls, with theirs. `problem`: why
    something may be left in the store's files, else null."""

    hot_records: int
    records: int
    bytes: int
    documents: int
    document_bytes: int
    problem: str | None
    hot_bytes: int = 0


class CacheStatsBody(TiersBody, tag_field="object", tag="cairn.cache_stats"):
    """The tiers with the ledger. `memory`: null where the engine keeps no ledger."""

    memory: MemoryBody | None = None


def cache_routes(services: Services, bodies: PromptBodies) -> list[HTTPRouteHandler]:
    """The handlers. Clearing and the totals over all tenants are for admins only."""
    prompt_body = bodies.annotation

    @json_route("/v1/cache/explain", "explainCache", prompt_body, bodies.decode)
    async def explain(body: PromptBody, context: RequestContext) -> ExplanationBody:
        with renamed(body.wire_names):
            requests = await body.requests(context, operation="explainCache")
            explained = [await services.cached_prompts.explain(request) for request in requests]
        return ExplanationBody(explained[0].model, [prompt_explanation(one.explanation) for one in explained])

    @json_route("/v1/cache/warm", "warmCache", prompt_body, bodies.decode)
    async def warm(body: PromptBody, context: RequestContext) -> WarmedBody:
        with renamed(body.wire_names):
            requests = await body.requests(context, operation="warmCache")
            if not all(request.persist for request in requests):
                raise InvalidRequest("store is false: nothing of this request may be stored", param="store")
            # in turn, so that later prompts reuse prefixes that they share with earlier ones
            warmed = [await services.cached_prompts.warm(request) for request in requests]
        usages = [(one.usage, one.num_stored) for one in warmed]
        return WarmedBody(
            warmed[0].model,
            [PromptWarmed(use.prompt_tokens, use.reused_tokens, use.computed_tokens, kept) for use, kept in usages],
        )

    @json_route(
        "/v1/cache/clear",
        "clearCache",
        ClearRequest,
        guards=[admins_only],
        is_cancelled=False,
    )
    async def clear(body: ClearRequest, context: RequestContext) -> ClearedBody:
        if body.tier is not None:
            if body.model is not None or body.salt is not None:
                raise InvalidRequest("tier clears all models and salts: leave out model and salt", param="tier")
            evicted = await services.engine.cache.clear_hot()
            return ClearedBody(evicted.num_hot, 0, 0, 0, 0, None, evicted.hot_bytes)
        salt = None if body.salt is None else context.client.tenant(body.salt)
        cleared = await services.engine.cache.clear(body.model, salt)
        erased = await services.documents.erase(body.model, salt)
        problem = "; ".join(problem for problem in (cleared.problem, erased.problem) if problem) or None
        numbers = (cleared.num_hot, cleared.num_stored, cleared.stored_bytes, erased.num_documents, erased.num_bytes)
        return ClearedBody(*numbers, problem, cleared.hot_bytes)

    @get("/v1/cache/stats", guards=[admins_only], operation_id="readCacheStats", responses=errors(401))
    async def read_stats() -> CacheStatsBody:
        tiers = tiers_body(await services.engine.cache.stats(), await _usage(services.documents))
        return CacheStatsBody(**asdict(tiers), memory=memory_body(services.engine.status()))

    return [explain, warm, clear, read_stats]


async def _usage(documents: Documents) -> DocumentUsage | None:
    try:
        return await documents.usage()
    except StoreUnresponsive:
        return None
