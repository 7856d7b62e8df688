"""GET /v1/cache/stats: how full the prefix cache is. Totals over all tenants, so for admins only."""

from collections.abc import Awaitable, Callable

from litestar import get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.ports.cache_stats import CacheStats, HotUsage, QueueCounts, StoredModel, StoreStats
from application.ports.engine import EngineStatus
from application.services.documents import Documents
from domain.errors import StoreUnresponsive
from interfaces.http.cache.memory import MemoryBody, memory_body
from interfaces.http.documented import errors
from interfaces.http.visit import admins_only


class HotBody(Struct):
    """The tier in RAM. `evicted`: records since the start."""

    budget_bytes: int
    used_bytes: int
    blocks: int
    snapshots: int
    pinned: int
    evicted: int


class StoredModelBody(Struct):
    """What is stored of one model, over all its namespaces. `raw_bytes` before encoding."""

    model: str
    namespaces: int
    blocks: int
    snapshots: int
    raw_bytes: int
    stored_bytes: int


class StoreBody(Struct):
    """The persistent tier. `evicted` and `faults` (by kind): since it was opened."""

    quota_bytes: int
    stored_bytes: int
    evicted: int
    faults: dict[str, int]
    models: list[StoredModelBody]


class QueueBody(Struct):
    """Records on their way into the store, since the start; `dropped` by reason."""

    enqueued: int
    persisted: int
    queued: int
    queued_bytes: int
    dropped: dict[str, int]


class DocumentsBody(Struct):
    """Stored responses and the like. `evicted` and `faults` (by kind): since their store was opened."""

    quota_bytes: int
    stored_bytes: int
    documents: int
    evicted: int
    faults: dict[str, int]


class CacheStatsBody(Struct, tag_field="object", tag="cairn.cache_stats"):
    """`store` and `queue` are null when nothing is persisted, `documents` while their store does not answer. `problem`:
    why `store` is null although there is one."""

    hot: HotBody
    store: StoreBody | None
    queue: QueueBody | None
    documents: DocumentsBody | None
    problem: str = ""
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
        stats = await cache_stats()
        return CacheStatsBody(
            _hot(stats.hot),
            _store(stats.store) if stats.store is not None else None,
            _queue(stats.queue) if stats.queue is not None else None,
            await _documents(documents),
            stats.problem,
            memory_body(engine_status()) if engine_status is not None else None,
        )

    return read_cache_stats


def _hot(usage: HotUsage) -> HotBody:
    return HotBody(
        usage.budget_bytes, usage.used_bytes, usage.num_blocks, usage.num_snapshots, usage.num_pinned, usage.evicted
    )


def _store(usage: StoreStats) -> StoreBody:
    models = [_stored(model) for model in usage.models]
    return StoreBody(usage.quota_bytes, usage.stored_bytes, usage.evicted, dict(usage.faults), models)


def _stored(model: StoredModel) -> StoredModelBody:
    return StoredModelBody(
        model.model,
        model.num_namespaces,
        model.num_blocks,
        model.num_snapshots,
        model.raw_bytes,
        model.stored_bytes,
    )


def _queue(counts: QueueCounts) -> QueueBody:
    return QueueBody(counts.enqueued, counts.persisted, counts.queued, counts.queued_bytes, dict(counts.dropped))


async def _documents(documents: Documents) -> DocumentsBody | None:
    try:
        usage = await documents.usage()
    except StoreUnresponsive:
        return None
    return DocumentsBody(usage.quota_bytes, usage.stored_bytes, usage.num_documents, usage.evicted, dict(usage.faults))


__all__ = ("CacheStatsBody", "stats_route")
