"""Bodies of several of Cairn's own routes: a lookup explained, the memory ledger, the tiers of the prefix cache."""

from typing import TypeVar

import msgspec
from msgspec import Struct

from application.ports.cache_stats import CacheStats, SharedStats
from application.ports.document_store import DocumentUsage
from application.ports.engine import EngineStatus
from domain.memory.ledger import MemoryLimits
from domain.prefix.explanation import Explanation, StopReason, explanation_sentence
from domain.prefix.prompt_content import ForkPoint


class DivergenceBody(Struct):
    """The first token that differs from the nearest stored prompt: its position, what stands before it in both, and
    how either goes on. `stored` is null if the server does not show stored text (`cache.show_text`)."""

    position: int
    before: str
    prompt: str
    stored: str | None


class PromptExplanation(Struct):
    """One lookup explained. Tokens: prompt = live + hot + store + shared + computed. `stopped_at`: up to where the
    prompt would be reused. `known_tokens`: up to where its blocks are stored. `sentence` says in words what `reason`
    means here."""

    prompt_tokens: int
    hot_tokens: int
    store_tokens: int
    computed_tokens: int
    stopped_at: int
    reason: StopReason
    sentence: str
    known_tokens: int
    divergence: DivergenceBody | None
    nearest_fork: ForkPoint | None
    note: str
    live_tokens: int = 0
    shared_tokens: int = 0


def prompt_explanation(found: Explanation) -> PromptExplanation:
    split = found.divergence
    return PromptExplanation(
        prompt_tokens=found.num_prompt,
        hot_tokens=found.reused.get("hot", 0),
        store_tokens=found.reused.get("store", 0),
        computed_tokens=found.num_computed,
        stopped_at=found.stopped_at,
        reason=found.reason,
        sentence=explanation_sentence(found),
        known_tokens=found.num_known,
        divergence=None if split is None else DivergenceBody(split.position, split.before, split.prompt, split.stored),
        nearest_fork=found.nearest_fork,
        note=found.note,
        live_tokens=found.reused.get("live", 0),
        shared_tokens=found.reused.get("shared", 0),
    )


class HeldBody(Struct):
    """The bytes that are held, by purpose. `live`: states that ended sequences left for the next turn. `reading`: what
    was read to be used in fact; null when that was not needed."""

    weights: int
    states: int
    live: int
    hot: int
    queued: int
    in_flight: int
    other: int
    reading: int | None


class PromisedBody(Struct):
    """The bytes that are promised. `growth`: of open sequences; `transient`: what the next step takes for a moment."""

    growth: int
    transient: int


class MemoryBody(Struct):
    """The memory ledger. `limits` and `room_bytes` are null without a limit. `pressure`: calm, lean (the hot tier is
    smaller), paused (no request is admitted), preempting or refusing. `waiting_for`: the number of choices that wait in
    the queue for `memory` or a `place`. `process_bytes`: read to be held by the process, freed buffers included;
    `available_bytes`: what the machine has left for any process; null where they cannot be read."""

    limits: MemoryLimits | None
    used_bytes: int
    room_bytes: int | None
    pressure: str
    held: HeldBody
    promised: PromisedBody
    waiting_for: dict[str, int]
    process_bytes: int | None
    available_bytes: int | None


def memory_body(status: EngineStatus) -> MemoryBody | None:
    """None where the engine keeps no ledger."""
    if (ledger := status.ledger) is None:
        return None
    return MemoryBody(
        status.limits,
        ledger.used_bytes,
        ledger.room_bytes,
        status.pressure,
        HeldBody(
            weights=ledger.weight_bytes,
            states=ledger.state_bytes,
            live=ledger.live_bytes,
            hot=ledger.hot_bytes,
            queued=ledger.queued_bytes,
            in_flight=ledger.flight_bytes,
            other=ledger.other_bytes,
            reading=ledger.reading_bytes,
        ),
        PromisedBody(ledger.growth_bytes, ledger.transient_bytes),
        dict(status.waiting_for),
        ledger.process_bytes,
        ledger.available_bytes,
    )


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
    """The tiers of the prefix cache. `store` and `queue` are null when nothing is persisted, `documents` while their
    store does not answer. `problem`: why `store` is null although there is one. `live`: null where the engine does not
    report it. `shared`: null without a shared store."""

    hot: HotBody
    store: StoreBody | None
    queue: QueueBody | None
    documents: DocumentsBody | None
    problem: str = ""
    live: LiveBody | None = None
    shared: SharedStats | None = None


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
        stats.shared,
    )


_Body = TypeVar("_Body")


def body_of(answer: object, body: type[_Body]) -> _Body:
    """Decoded JSON as a body; fields that are not known are left out. Raises ValueError that says what is wrong."""
    return msgspec.convert(answer, body)


def data_of(body: msgspec.Struct | None) -> object:
    """A body as decoded JSON."""
    return msgspec.to_builtins(body)
