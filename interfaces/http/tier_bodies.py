"""How full the prefix cache is, as admins are shown it: totals over all tenants."""

from msgspec import Struct

from application.ports.cache_stats import CacheStats, HotUsage, LiveUsage, QueueCounts, StoredModel, StoreStats
from application.ports.document_store import DocumentUsage


class HotBody(Struct):
    """The tier in RAM. `evicted`: records since the start."""

    budget_bytes: int
    used_bytes: int
    blocks: int
    snapshots: int
    pinned: int
    evicted: int


class LiveBody(Struct):
    """States that ended sequences left. Since the start: `left`, `taken` over, `evicted` for want of room."""

    budget_bytes: int
    used_bytes: int
    states: int
    left: int
    taken: int
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
    """Records on their way into the store, since the start; `lag_s`: how long the oldest has waited; `dropped` by
    reason."""

    enqueued: int
    persisted: int
    queued: int
    queued_bytes: int
    lag_s: float
    dropped: dict[str, int]


class DocumentsBody(Struct):
    """Stored responses and the like. `evicted` and `faults` (by kind): since their store was opened."""

    quota_bytes: int
    stored_bytes: int
    documents: int
    evicted: int
    faults: dict[str, int]


class TiersBody(Struct):
    """`store` and `queue` are null when nothing is persisted, `documents` while their store does not answer. `problem`:
    why `store` is null although there is one. `live`: null where the engine tells nothing of it."""

    hot: HotBody
    store: StoreBody | None
    queue: QueueBody | None
    documents: DocumentsBody | None
    problem: str = ""
    live: LiveBody | None = None


def tiers_body(stats: CacheStats, documents: DocumentUsage | None) -> TiersBody:
    return TiersBody(
        _hot(stats.hot),
        _store(stats.store) if stats.store is not None else None,
        _queue(stats.queue) if stats.queue is not None else None,
        _documents(documents) if documents is not None else None,
        stats.problem,
        _live(stats.live) if stats.live is not None else None,
    )


def _hot(usage: HotUsage) -> HotBody:
    return HotBody(
        usage.budget_bytes, usage.used_bytes, usage.num_blocks, usage.num_snapshots, usage.num_pinned, usage.evicted
    )


def _live(usage: LiveUsage) -> LiveBody:
    return LiveBody(usage.budget_bytes, usage.used_bytes, usage.num_states, usage.left, usage.taken, usage.evicted)


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
    return QueueBody(
        counts.enqueued, counts.persisted, counts.queued, counts.queued_bytes, counts.lag_s, dict(counts.dropped)
    )


def _documents(usage: DocumentUsage) -> DocumentsBody:
    return DocumentsBody(usage.quota_bytes, usage.stored_bytes, usage.num_documents, usage.evicted, dict(usage.faults))


__all__ = (
    "DocumentsBody",
    "HotBody",
    "QueueBody",
    "StoreBody",
    "StoredModelBody",
    "TiersBody",
    "tiers_body",
)
