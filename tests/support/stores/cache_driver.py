"""A prefix cache that is stepped, and caches for tests that are about something else."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from adapters.fake import ATTENTION, HYBRID, LAYOUTS, WINDOWED, FakeClock, FakeModel, FakeOptions
from application.ports.block_store import BlockStore
from application.ports.clock import Clock
from application.ports.compute import DecodeStart
from application.ports.event_sink import EventSink
from application.ports.shared_store import SharedStore
from application.services.lane import Lane
from application.services.prefix.block_feed import BlockFeed
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.live_tier import LiveTier
from application.services.prefix.no_reuse import NoReuse
from application.services.prefix.session import PrefixSession
from application.services.prefix.store_tier import StoreTier, Upload
from application.services.prefix.tiers import PrefixTiers
from application.services.prefix.write_behind import WriteBehind
from domain.ids import ModelId, RequestId, SequenceId
from domain.models.model_card import ModelSource
from domain.models.state_layout import StateLayout
from domain.prefix.explanation import Explanation
from domain.prefix.prompt_content import BlockGrid, EncodedPrompt, ForkPoint
from domain.request.sampling import SamplingParams
from domain.scheduling.plan_step import next_chunk_end
from tests.support.processes.lanes import InlineLane
from tests.support.stores.shared_stores import pump, stepped_tier
from tests.support.stores.stepped_writer import DirectWriter
from tests.support.telemetry.recording import RecordingEvents

VOCAB = 1 << 20
BLOCK = 16
GRID = 32
TOY = ModelId("toy")
OPTIONS = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
KINDS = pytest.mark.parametrize(
    "layout",
    [ATTENTION, WINDOWED, HYBRID, LAYOUTS["everything"]],
    ids=["attention", "windowed", "hybrid", "everything"],
)


def options(layout: StateLayout, weights: int = 1) -> FakeOptions:
    return replace(OPTIONS, layout=layout, weights=weights)


@dataclass
class Job:
    """One request on its way. `output` grows; `computed` counts prompt tokens but the last, which always is."""

    id: SequenceId
    prompt: EncodedPrompt
    num_output: int
    cache: PrefixSession | NoReuse
    position: int = -1
    computed: int = 0
    output: list[int] = field(default_factory=list[int])
    is_admitted: bool = False
    is_done: bool = False

    @property
    def explanation(self) -> Explanation:
        return self.cache.explanation


class CacheDriver:
    """One toy model, a hot tier and perhaps a store. `options.layout` decides the kind of model.

    `queue`: what stands in front of the store; without one records are stored at once. `lane` reads and deletes,
    `hashing` hashes; by default both do so at once.
    """

    def __init__(
        self,
        options: FakeOptions,
        *,
        hot_bytes: int = 1 << 30,
        live_bytes: int = 0,
        store: BlockStore | None = None,
        queue: WriteBehind | None = None,
        is_exact: bool = False,
        is_enabled: bool = True,
        lane: Lane | None = None,
        hashing: Lane | None = None,
        upload: Upload | None = None,
        shared: SharedStore | None = None,
        calls: Lane | None = None,
        published_size: int = 0,
    ) -> None:
        """`upload`: what the compute thread does to each payload that is read. `calls`: makes those of the `shared`
        store, by default at once; what waits for it is written by `share`. `published_size`: of the blocks that are
        published; 0: none are."""
        self.store = store
        self.writer = DirectWriter(store) if store is not None else None
        self.hot, self.live = HotTier(hot_bytes), LiveTier(live_bytes)
        self.events, self.clock = RecordingEvents(), FakeClock()
        lane = lane or InlineLane()
        store_tier = StoreTier(
            self.clock,
            self.events,
            queue or self.writer,
            upload=upload,
            uploads_on_compute_thread=upload is not None,
            readers=lane,
            upkeep=lane,
        )
        own = stepped_tier(shared, self.events, self.clock, calls or InlineLane()) if shared is not None else None
        self.tiers = PrefixTiers(self.hot, store_tier, self.live, hashing=hashing or InlineLane(), shared=own)
        self.num_wakes = 0
        grid = BlockGrid(BLOCK, GRID, is_exact)
        self.feed = BlockFeed(self.tiers, published_size) if published_size else None
        self.cache = PrefixCache(self.tiers, grid, is_enabled=is_enabled, feed=self.feed)
        self.cache.wake_with(self._wake)
        self.model = FakeModel(ModelSource(TOY, "p"), options)
        self.note = self.cache.attach(self.model.description)
        self._next_id = 0

    def submit(
        self,
        prompt: Sequence[int],
        num_output: int = 4,
        forks: Sequence[ForkPoint] = (),
        salt: str = "",
        *,
        persist: bool = True,
        restores: bool = True,
    ) -> Job:
        """A request arrives and waits in the queue: workers look it up, and no step was planned yet."""
        id = SequenceId(self._next_id)
        self._next_id += 1
        encoded = EncodedPrompt.of_text(prompt, forks)
        self.model.open(id)
        kept = {"persist": persist, "restores": restores}
        cache = self.cache.begin(id, RequestId(f"r{id}"), TOY, encoded, salt, **kept)
        return Job(id, encoded, num_output, cache)

    def begin(self, prompt: Sequence[int], *arguments: Any, **options: Any) -> Job:
        """`submit` a request and admit it, unless it follows another; it does nothing until stepped."""
        job = self.submit(prompt, *arguments, **options)
        self._admit(job)
        return job

    def admit(self, job: Job) -> None:
        """Whomever it would follow."""
        job.cache.prepare()
        job.is_admitted = True

    def step(self, job: Job) -> bool:
        """One restore, prefill chunk or decode step. False when there was nothing to do (it waits, or is done)."""
        prompt = job.prompt.token_ids
        if job.is_done:
            return False
        if job.position < 0:
            if not self._admit(job) or not job.cache.poll():
                return False
            job.position = job.cache.restore(self.model)
            assert self.model.position(job.id) == job.position
        elif job.position < len(prompt):
            self._prefill(job, next_chunk_end(job.position, len(prompt), GRID, job.cache.stops))
        else:
            self._decode(job)
        return True

    def finish(self, *jobs: Job) -> None:
        """Step all in turn until all are done."""
        while not all(job.is_done for job in jobs):
            progress = [self.step(job) for job in jobs]
            assert any(progress), "every sequence waits"

    def run(self, prompt: Sequence[int], *arguments: Any, **options: Any) -> Job:
        """`begin` it, and step it until it is done."""
        job = self.begin(prompt, *arguments, **options)
        self.finish(job)
        return job

    def cancel(self, job: Job) -> None:
        if not job.is_done:
            job.cache.end(self.model, job.output)
            self._close(job)

    def fail(self, job: Job) -> None:
        if not job.is_done:
            job.cache.abandon()
            self._close(job)

    def explain(self, prompt: Sequence[int], salt: str = "") -> Explanation:
        return self.cache.explain(TOY, EncodedPrompt.of_text(tuple(prompt)), salt)

    def share(self) -> None:
        """Write what waits for the shared store."""
        assert self.tiers.shared is not None
        pump(self.tiers.shared)

    def check(self) -> None:
        """Everything is sound, and nothing is held by a sequence that is gone."""
        assert self.hot.check_integrity() == []
        assert self.live.check_integrity() == []
        if self.store is not None:
            assert self.store.check_integrity(payloads=True).problems == ()

    def check_idle(self) -> None:
        self.check()
        assert not self.cache.tiers.open
        assert self.hot.usage().num_pinned == 0
        assert self.model.open_ids() == frozenset()
        assert len(self.model.left_ids()) == self.live.usage().num_states

    def _admit(self, job: Job) -> bool:
        """As the planner does: no sequence that follows a running prefill."""
        if not job.is_admitted:
            job.cache.refresh()
            if job.cache.is_looked_up and job.cache.follows is None:
                self.admit(job)
        return job.is_admitted

    def _wake(self) -> None:
        self.num_wakes += 1

    def _prefill(self, job: Job, end: int) -> None:
        prompt, start = job.prompt.token_ids, job.position
        if end < len(prompt):
            self.model.prefill(job.id, prompt[start:end])
        else:
            self.model.start_decode(job.id, prompt[start:], DecodeStart(prompt, SamplingParams(temperature=0), seed=0))
        job.position = end
        if (reusable := min(end, len(prompt) - 1)) > start:
            job.computed += reusable - start
            job.cache.prefilled(self.model, reusable)

    def _decode(self, job: Job) -> None:
        job.output.append(self.model.decode([job.id])[0].token_ids[0])
        job.cache.decoded(self.model, job.output)
        if len(job.output) >= job.num_output:
            job.cache.end(self.model, job.output)
            self._close(job)

    def _close(self, job: Job) -> None:
        self.model.close([job.id])
        job.is_done = True


def plain_answer(options: FakeOptions, prompt: Sequence[int], num_output: int = 4) -> list[int]:
    """What the model says without any cache."""
    driver = CacheDriver(options, is_enabled=False)
    return driver.run(prompt, num_output).output


def prefix_cache(
    events: EventSink | None = None,
    clock: Clock | None = None,
    *,
    is_enabled: bool = False,
    hot_bytes: int = 1 << 28,
    block_size: int = 16,
    grid: int = 32,
) -> PrefixCache:
    """Without a store; `is_enabled` False: nothing is ever reused."""
    events, clock = events or RecordingEvents(), clock or FakeClock()
    tiers = PrefixTiers(HotTier(hot_bytes), StoreTier(clock, events), hashing=Lane("hash", 1))
    return PrefixCache(tiers, BlockGrid(block_size, grid), is_enabled=is_enabled)
