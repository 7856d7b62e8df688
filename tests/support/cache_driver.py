"""Drives a toy model through the prefix cache as the engine loop does, one sequence or several interleaved."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from adapters.fake import FakeClock, FakeModel, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.ports.block_store import BlockStore, PutOutcome
from application.ports.compute import DecodeStart
from application.ports.tokenizer import EncodedPrompt
from application.services.prefix.cache import CacheRules, PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.sequence_cache import SequenceCache
from application.services.prefix.store_read import StoreRead
from application.services.prefix.store_workers import StoreWorkers
from application.services.prefix.tiers import PrefixTiers
from application.services.prefix.write_behind import WriteBehind
from application.services.prefix.write_behind_store import WriteBehindStore
from domain.explanation import Explanation
from domain.fork_point import ForkPoint
from domain.ids import ModelId, RequestId, SequenceId
from domain.model_card import ModelSource
from domain.record import NamespaceInfo, Record
from domain.sampling import SamplingParams
from domain.scheduling import next_chunk_end
from tests.support.recording import RecordingEvents
from tests.support.stepped_writer import SteppedWriter

VOCAB = 1 << 20
BLOCK = 16
GRID = 32


class InlineExecutor(Executor):
    """Runs work at once, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class HeldExecutor(Executor):
    """Keeps work until `run`; for testing what happens in between."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self._reads: list[StoreRead[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self._waiting.append(lambda: future.set_result(fn(*args, **kwargs)))
        if isinstance(fn, StoreRead):
            self._reads.append(fn)
        return future

    def hang(self, count: int | None = None) -> int:
        """Begin reads that wait, all or so many, without an answer before `run`; returns how many that were."""
        reads, self._reads = self._reads[:count], self._reads[count:] if count is not None else []
        return sum(read.begin() for read in reads)

    def run(self, count: int | None = None) -> int:
        """Do what waits, all or so much, in order; returns how much that was."""
        waiting, self._waiting = self._waiting[:count], self._waiting[count:] if count is not None else []
        for work in waiting:
            work()
        return len(waiting)


class DirectWriter:
    """A RecordWriter that stores at once. `is_refusing`: the queue is full."""

    def __init__(self, store: BlockStore) -> None:
        self.store = store
        self.is_refusing = False
        self.outcomes: list[PutOutcome] = []

    def offer(self, info: NamespaceInfo, records: Sequence[Record]) -> bool:
        if self.is_refusing:
            return False
        self.store.open_namespace(info)
        self.outcomes.append(self.store.put(records))
        return True


@dataclass
class Job:
    """One request on its way. `output` grows; `computed` counts prompt tokens but the last, which always is."""

    id: SequenceId
    prompt: EncodedPrompt
    num_output: int
    cache: SequenceCache
    position: int = -1
    computed: int = 0
    output: list[int] = field(default_factory=list[int])
    is_done: bool = False

    @property
    def explanation(self) -> Explanation:
        return self.cache.explanation


class CacheDriver:
    """One toy model, a hot tier and perhaps a store. `options.layout` decides the kind of model.

    `queue`: what stands in front of the store; without one records are stored at once. `executor` fetches and deletes,
    `lookups` looks up; by default both do so at once.
    """

    def __init__(
        self,
        options: FakeOptions,
        *,
        hot_bytes: int = 1 << 30,
        store: BlockStore | None = None,
        queue: SteppedWriter | WriteBehind | None = None,
        is_exact: bool = False,
        is_enabled: bool = True,
        executor: Executor | None = None,
        lookups: Executor | None = None,
    ) -> None:
        self.store = store
        self.writer = DirectWriter(store) if store is not None else None
        self.hot = HotTier(hot_bytes)
        view = WriteBehindStore(queue.store, queue) if queue is not None else store
        self.events, self.clock = RecordingEvents(), FakeClock()
        inline = InlineExecutor()
        workers = StoreWorkers(self.clock, self.events, executor or inline, lookups or inline)
        self.tiers = PrefixTiers(self.hot, view, queue or self.writer, workers)
        rules = CacheRules(BLOCK, GRID, is_exact, is_enabled)
        self.num_wakes = 0
        self.cache = PrefixCache(self.tiers, self.clock, self.events, rules, self._wake)
        self.model = FakeModel(ModelSource(ModelId("toy"), "p"), options)
        self.note = self.cache.attach(self.model.description)
        self._next_id = 0

    def begin(
        self,
        prompt: Sequence[int],
        num_output: int = 4,
        forks: Sequence[ForkPoint] = (),
        salt: str = "",
        *,
        persist: bool = True,
    ) -> Job:
        """Admit a request; it does nothing until stepped."""
        id = SequenceId(self._next_id)
        self._next_id += 1
        encoded = EncodedPrompt(tuple(prompt), tuple(forks))
        self.model.open(id)
        cache = self.cache.begin(id, RequestId(f"r{id}"), ModelId("toy"), encoded, salt, persist=persist)
        cache.prepare()
        return Job(id, encoded, num_output, cache)

    def step(self, job: Job) -> bool:
        """One restore, prefill chunk or decode step. False when there was nothing to do (it waits, or is done)."""
        prompt = job.prompt.token_ids
        if job.is_done:
            return False
        if job.position < 0:
            if not job.cache.poll():
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

    def run(
        self,
        prompt: Sequence[int],
        num_output: int = 4,
        forks: Sequence[ForkPoint] = (),
        salt: str = "",
        *,
        persist: bool = True,
    ) -> Job:
        job = self.begin(prompt, num_output, forks, salt, persist=persist)
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

    def check(self) -> None:
        """Everything is sound, and nothing is held by a sequence that is gone."""
        assert self.hot.check_integrity() == []
        if self.store is not None:
            assert self.store.check_integrity(payloads=True).problems == ()

    def check_idle(self) -> None:
        self.check()
        assert self.cache.num_open() == 0
        assert self.hot.usage().num_pinned == 0
        assert self.model.open_ids() == frozenset()

    def _wake(self) -> None:
        self.num_wakes += 1

    def _prefill(self, job: Job, end: int) -> None:
        prompt, start = job.prompt.token_ids, job.position
        if end < len(prompt):
            self.model.prefill(job.id, prompt[start:end])
        else:
            self.model.start_decode(job.id, prompt[start:], DecodeStart(prompt, SamplingParams(temperature=0), 0))
        job.position = end
        if (reusable := min(end, len(prompt) - 1)) > start:
            job.computed += reusable - start
            job.cache.prefilled(self.model, reusable)

    def _decode(self, job: Job) -> None:
        job.output.append(self.model.decode([job.id])[0].token_id)
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


def memory_store(quota_bytes: int | None = None) -> MemoryBlockStore:
    return MemoryBlockStore(quota_bytes)


__all__ = ("BLOCK", "GRID", "VOCAB", "CacheDriver", "DirectWriter", "HeldExecutor", "InlineExecutor", "Job")
