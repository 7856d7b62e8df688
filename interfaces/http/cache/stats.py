"""GET /v1/cache/stats: how full the prefix cache is. Totals over all tenants, so for admins only."""

from collections.abc import Awaitable, Callable

from litestar import get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct
from msgspec.structs import asdict

from application.ports.cache_stats import CacheStats
from application.ports.document_store import DocumentUsage
from application.ports.engine import EngineStatus
from application.services.documents import Documents
from domain.errors import StoreUnresponsive
from interfaces.http.answering.documented import errors
from interfaces.http.incoming.visit import admins_only
from interfaces.http.operations.memory_body import MemoryBody, memory_body
from interfaces.http.operations.tier_bodies import TiersBody, tiers_body


class CacheStatsBody(TiersBody, tag_field="object", tag="cairn.cache_stats"):
    """As TiersBody. `memory`: null where the engine keeps no ledger."""

    memory: MemoryBody | None = None


def stats_route(
    cache_stats: Callable[[], Awaitable[CacheStats]],
    engine_status: Callable[[], EngineStatus] | None,
    documents: Documents,
    error_type: type[Struct],
) -> HTTPRouteHandler:
    """The handler, bound to what it needs."""

    @get("/v1/cache/stats", guards=[admins_only], operation_id="readCacheStats", responses=errors(error_type, 401))
    async def read_cache_stats() -> CacheStatsBody:
        tiers = tiers_body(await cache_stats(), await _usage(documents))
        memory = memory_body(engine_status()) if engine_status is not None else None
        return CacheStatsBody(**asdict(tiers), memory=memory)

    return read_cache_stats


async def _usage(documents: Documents) -> DocumentUsage | None:
    try:
        return await documents.usage()
    except StoreUnresponsive:
        return None
