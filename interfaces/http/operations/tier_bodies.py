"""How full the prefix cache is, as admins are shown it: totals over all tenants."""

from typing import TypeVar

import msgspec
from msgspec import Struct

from application.ports.cache_stats import CacheStats
from application.ports.document_store import DocumentUsage

BodyT = TypeVar("BodyT", bound=Struct)


class Usage(Struct, rename=lambda name: name.removeprefix("num_")):
    """A reading with its own field names, but for `num_`."""


class HotBody(Usage):
    """The tier in RAM. `evicted`: records since the start."""

    budget_bytes: int
    used_bytes: int
    num_blocks: int
    num_snapshots: int
    num_pinned: int
    evicted: int


class LiveBody(Usage):
    """States that ended sequences left. Since the start: `left`, `taken` over, `evicted` for want of room."""

    budget_bytes: int
    used_bytes: int
    num_states: int
    left: int
    taken: int
    evicted: int


class StoredModelBody(Usage):
    """The store's records of one model, over all its namespaces. `raw_bytes` before encoding."""

    model: str
    num_namespaces: int
    num_blocks: int
    num_snapshots: int
    raw_bytes: int
    stored_bytes: int


class StoreBody(Usage):
    """The persistent tier. `evicted` and `faults` (by kind): since it was opened."""

    quota_bytes: int
    stored_bytes: int
    evicted: int
    faults: dict[str, int]
    models: list[StoredModelBody]


class QueueBody(Usage):
    """Records on their way into the store, since the start; `lag_s`: how long the oldest has waited; `dropped` by
    reason."""

    enqueued: int
    persisted: int
    queued: int
    queued_bytes: int
    lag_s: float
    dropped: dict[str, int]


class DocumentsBody(Usage):
    """Stored responses and the like. `evicted` and `faults` (by kind): since their store was opened."""

    quota_bytes: int
    stored_bytes: int
    num_documents: int
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
    def tier(value: object, body: type[BodyT]) -> BodyT:
        return msgspec.convert(value, body, from_attributes=True)

    return TiersBody(
        tier(stats.hot, HotBody),
        tier(stats.store, StoreBody) if stats.store is not None else None,
        tier(stats.queue, QueueBody) if stats.queue is not None else None,
        tier(documents, DocumentsBody) if documents is not None else None,
        stats.problem,
        tier(stats.live, LiveBody) if stats.live is not None else None,
    )
