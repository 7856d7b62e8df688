"""Readings of the prefix cache: the use of its tiers, and the records that a clearing removed. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class HotUsage:
    """A consistent reading, in bytes and records. `evicted`: since the start."""

    budget_bytes: int
    used_bytes: int
    num_blocks: int
    num_snapshots: int
    num_pinned: int
    evicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveUsage:
    """The live tier: states of ended sequences. `left`, `taken` over and `evicted`: counts since the start."""

    budget_bytes: int
    used_bytes: int
    num_states: int
    left: int
    taken: int
    evicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """Records since the start; `dropped` by reason: queue_full, orphan, full, unavailable, failed, shutdown or deleted.
    `lag_s`: the age of the oldest queued record.

    At every reading, enqueued = persisted + queued + everything dropped after it was enqueued. Records that were
    refused on arrival (queue_full, and shutdown once closed) were never enqueued.
    """

    enqueued: int = 0
    persisted: int = 0
    queued: int = 0
    queued_bytes: int = 0
    lag_s: float = 0.0
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """The records stored of one model, over all its namespaces. `raw_bytes`: before encoding."""

    model: str
    num_namespaces: int
    num_blocks: int
    num_snapshots: int
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """The store, its models by name. `evicted` and `faults` (by kind): since it was opened."""

    quota_bytes: int
    stored_bytes: int
    evicted: int
    faults: Mapping[str, int]
    models: tuple[StoredModel, ...]


@dataclass(frozen=True, slots=True)
class SharedStats:
    """The shared tier since the start. `is_available`: it is asked now; `num_outages`: times it was not any more.
    `asked`: prompts by outcome, `read` and `written`: records by outcome, as in SharedStoreUsed. Bytes are encoded but
    for the queue's."""

    is_available: bool
    num_outages: int
    asked: Mapping[str, int]
    read: Mapping[str, int]
    written: Mapping[str, int]
    queued: int
    queued_bytes: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """`store` and `queue` are None when nothing is persisted. `problem`: the reason why `store` is None although a
    store is configured. `live`: None where it is not reported. `shared`: None without a shared store."""

    hot: HotUsage
    store: StoreStats | None
    queue: QueueCounts | None
    problem: str = ""
    live: LiveUsage | None = None
    shared: SharedStats | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """Counts of removed records: of the hot tier, with the bytes that they used; of the store, including queued ones,
    and their bytes in the store. `problem`: the reason why data may be left in its files; empty when none is."""

    num_hot: int = 0
    num_stored: int = 0
    stored_bytes: int = 0
    problem: str = ""
    hot_bytes: int = 0

    def plus(self, other: "Cleared") -> "Cleared":
        """Returns the sum of both."""
        problems = "; ".join(dict.fromkeys(filter(None, (self.problem, other.problem))))
        return Cleared(
            self.num_hot + other.num_hot,
            self.num_stored + other.num_stored,
            self.stored_bytes + other.stored_bytes,
            problems,
            self.hot_bytes + other.hot_bytes,
        )
