"""One simulated server: the real services on toy models, rebuilt at each restart around a store that stays."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from random import Random

from adapters.fake import LAYOUTS, FakeClock, FakeEngine, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.ports.engine import EngineItem, ImageWanted, StepBatch, Submission
from application.ports.shared_store import SharedStore
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.live_tier import LiveTier
from application.services.prefix.shared.tier import SharedTier
from application.services.prefix.store_tier import StoreTier
from application.services.prefix.tiers import PrefixTiers
from application.services.token_side.engine_loop import EngineLoop
from application.services.token_side.event_batcher import EventBatcher
from domain.chunking import Chunking
from domain.errors import ComputeFailed
from domain.ids import ModelId, RequestId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.hashing import BlockChain
from domain.prefix.index import ANYWHERE, NOTHING_SHARED, PrefixIndex, PrefixMatch, ReuseRules, SharedRecords
from domain.prefix.prompt_content import BlockGrid
from domain.prefix.record import RecordKey
from domain.request.request import choice_id
from domain.scheduling.queue_waits import QueueWaits
from domain.scheduling.sequence import Phase
from domain.scheduling.step_values import StepLimits
from tests.simulation.oracle import StorageOracle, hot_records, queued_records, stored_records
from tests.simulation.scripted_guard import ScriptedGuard
from tests.simulation.workload import BY_DIGEST, TOYS, VOCAB
from tests.support.engines.compute_faults import ComputeFaults, FaultyEngine
from tests.support.engines.drafters import CHEAP, KINDS, KnowingDrafter
from tests.support.engines.finish_load import finish_load
from tests.support.engines.guards import UnboundedGuard
from tests.support.engines.image_desk import ImageDesk
from tests.support.processes.lanes import HeldLane
from tests.support.stores.faulty_stores import FaultInjectingBlockStore, FaultPlan
from tests.support.stores.shared_stores import stepped_tier
from tests.support.stores.stepped_writer import SteppedWriter
from tests.support.telemetry.recording import RecordingEvents

BLOCK, GRID = 16, 32
DEFECTS = frozenset(
    {"open", "close", "position", "start_decode", "capture_blocks", "capture_snapshot", "keep_live", "take_over"}
    | {"drop", "set_media", "encode_image"}
)
RETRIED = frozenset({"close", "drop"})


@dataclass(frozen=True)
class Plan:
    """What is drawn once for a run. `quota_bytes` None: no store. `is_ample`: nothing is ever evicted or fails.
    `guarded_bytes`: what a scripted guard has room for; None: there is none. `live_bytes`: for states that are left.
    `feature_bytes`: for features of images that no sequence uses."""

    models: dict[ModelId, FakeOptions]
    limits: StepLimits
    hot_bytes: int
    quota_bytes: int | None
    queue_bytes: int
    faults: FaultPlan
    is_exact: bool
    failure_rate: float
    is_ample: bool
    defect_rate: float = 0.0
    guarded_bytes: int | None = None
    live_bytes: int = 0
    feature_bytes: int = 0

    @property
    def sees(self) -> bool:
        return any(model.images is not None for model in self.models.values())


def draw_plan(random: Random) -> Plan:
    """A model under two names, the same retrained, another layout, perhaps an odd one; all else as luck has it."""
    is_exact = random.random() < 0.25
    names = random.sample([name for name in LAYOUTS if name != "unsupported"], 2)
    base = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=random.choice((0, 40)), eos_id=VOCAB - 1)
    if random.random() < 0.6:
        base = replace(base, images=TOYS, image_is_whole=random.random() < 0.3)
    base = replace(base, chunk_sensitive=is_exact, runs_ahead=random.random() < 0.5)
    if random.random() < 0.5:  # with few tokens an answer repeats what was said, and lookup finds it
        base = replace(base, alphabet=range(random.choice((2, VOCAB))), width_costs=CHEAP)
    if base.runs_ahead:  # chunks get shorter within the length of these prompts
        grid = GRID if base.width_costs is not None else BLOCK
        base = replace(base, chunking=Chunking(grid, 2 * grid * grid, least=4))
    models = {ModelId(name): replace(base, layout=LAYOUTS[name], weights=at) for at, name in enumerate(names)}
    models[ModelId("retrained")] = replace(models[ModelId(names[0])], weights=7)
    if random.random() < 0.2:
        models[ModelId("odd")] = replace(base, layout=LAYOUTS["unsupported"], weights=9)
    if base.width_costs is not None:
        models = {id: replace(model, drafter=draw_drafter(random)) for id, model in models.items()}
    models[ModelId("twin")] = models[ModelId(names[0])]
    is_ample = random.random() < 0.3
    plan = Plan(
        models,
        StepLimits(random.randint(1, 6), random.choice((GRID, 3 * GRID)), GRID, random.choice((1, 8, GRID))),
        hot_bytes=random.choice((0, 10_000, 60_000, 1 << 30, 1 << 30)),
        quota_bytes=random.choice((None, 6_000, 40_000, 1 << 30, 1 << 30)),
        queue_bytes=random.choice((500, 3_000, 1 << 30)),
        faults=FaultPlan(random.randrange(1 << 30), *random.choice(((0.0, 0.0), (0.0, 0.1), (0.1, 0.1)))),
        is_exact=is_exact,
        failure_rate=random.choice((0.0, 0.0, 0.002)),
        is_ample=is_ample,
        defect_rate=random.choice((0.0, 0.0, 0.02)),
    )
    # Decoded tokens that are computed again are a chunk: in exact mode the toy's rounding tells.
    if not is_exact:
        plan = replace(plan, guarded_bytes=random.choice((None, 400, 1_000, 4_000)))
    if is_ample:
        plan = replace(plan, quota_bytes=1 << 30, queue_bytes=1 << 30, faults=FaultPlan())
        plan = replace(plan, failure_rate=0.0, defect_rate=0.0)
    plan = replace(plan, live_bytes=random.choice((0, 20_000, 100_000, 1 << 30, 1 << 30)))
    return replace(plan, feature_bytes=random.choice((0, 100, 400, 1 << 30)))


def draw_drafter(random: Random) -> KnowingDrafter | None:
    """Of one model in three it has none."""
    return KnowingDrafter(random.choice(list(KINDS)), random.randrange(1000)) if random.random() < 0.67 else None


class CheckedTiers(PrefixTiers):
    """Compares every lookup with the oracle over what is really there. `is_store_truthful`: reads miss only what is not
    there, and the store says what it has."""

    is_store_truthful = True
    num_checked = 0

    def __init__(
        self, hot: HotTier, store: StoreTier, live: LiveTier, *, hashing: HeldLane, shared: SharedTier | None
    ) -> None:
        super().__init__(hot, store, live, hashing=hashing, shared=shared)
        self._match = self.indexes.match
        self.indexes.match = self._checked_match  # type: ignore[method-assign]

    def _checked_match(
        self,
        epoch: PrefixIndex,
        chain: BlockChain,
        rules: ReuseRules,
        absent: Collection[RecordKey] = (),
        place: int = ANYWHERE,
        shared: SharedRecords = NOTHING_SHARED,
    ) -> PrefixMatch:
        found = self._match(epoch, chain, rules, absent, place, shared)
        if place == ANYWHERE and not absent and not epoch.is_over and shared == NOTHING_SHARED:
            records = hot_records(self.hot, chain.namespace)
            if self.store.writer is not None:
                records += queued_records(self.store.writer, chain.namespace)
                records += stored_records(self.store.writer.store, chain.namespace)
            allowed = StorageOracle(records, rules).furthest(chain.prompt)  # by key ids: those of two images differ
            # Of a layout with windows the hot tier may hold blocks in part, and the lookup promise more than there is.
            may_promise = any(group.window is not None for group in rules.groups)
            if self.is_store_truthful:
                assert found.position <= allowed or may_promise, f"found {found.position}, there is {allowed}"
                assert found.position >= allowed or not epoch.is_known, f"found {found.position}, there is {allowed}"
            self.num_checked += 1
        return found


class Inbox:
    """What came out, by choice. `desk`: answers what is wanted of images."""

    desk: ImageDesk | None = None

    def __init__(self, events: RecordingEvents) -> None:
        self.items: dict[RequestId, list[EngineItem]] = {}
        self.num_left_queue = 0
        self._events = events

    def receive(self, batch: StepBatch) -> None:
        for id, choice, item in batch.items:
            if not isinstance(item, ImageWanted):
                self.items.setdefault(choice_id(id, choice), []).append(item)
        if self.desk is not None:
            self.desk.receive(batch)
        for event in batch.events:
            self._events.emit(event)
        self.num_left_queue += batch.num_left_queue


class World:
    """The server as it runs now."""

    def __init__(
        self, plan: Plan, memory: MemoryBlockStore | None, random: Random, shared: SharedStore | None = None
    ) -> None:
        self.plan = plan
        self.memory = memory
        self.events = RecordingEvents()
        self.inbox = Inbox(self.events)
        self.lane = HeldLane()
        self.num_injected = 0
        self._random = random
        self.num_added = 0
        self._failed_last = ""
        self.faulty = FaultInjectingBlockStore(memory, plan.faults) if memory is not None else None
        self.writer = SteppedWriter(self.faulty, plan.queue_bytes) if self.faulty is not None else None
        self.hot = HotTier(plan.hot_bytes)
        self.clock = clock = FakeClock(tick_ns=10)
        batcher = EventBatcher(clock)
        batcher.connect(self.inbox.receive)
        stored = StoreTier(clock, batcher, self.writer, readers=self.lane, upkeep=self.lane)
        self.live = LiveTier(plan.live_bytes)
        self.shared = stepped_tier(shared, batcher, clock, self.lane) if shared is not None else None
        self.tiers = CheckedTiers(self.hot, stored, self.live, hashing=self.lane, shared=self.shared)
        self.tiers.is_store_truthful = not plan.faults.get_misses
        self.cache = PrefixCache(self.tiers, BlockGrid(BLOCK, GRID, plan.is_exact))
        self.num_wakes = 0
        self.cache.wake_with(self._wake)
        self.guard = None
        if plan.guarded_bytes is not None:
            self.guard = ScriptedGuard(random, plan.guarded_bytes, plan.limits)
        waits = QueueWaits(math.inf)
        self.loop = EngineLoop(
            batcher=batcher,
            prefix_cache=self.cache,
            guard=self.guard or UnboundedGuard(plan.limits),
            limits=plan.limits,
            waits=waits,
        )
        self.loop.images.max_kept_bytes = plan.feature_bytes
        self.inbox.desk = self.desk = ImageDesk(self.lane, self.loop.images.provide, BY_DIGEST)
        self.engine = FakeEngine({id: replace(options, hook=self._hook()) for id, options in plan.models.items()})
        for id in plan.models:
            self.load(id)

    def load(self, id: ModelId) -> None:
        self.loop.models.connect(FaultyEngine(self.engine, ComputeFaults(self._defect)))
        finish_load(self.loop.models.load(ModelSource(id, "nowhere"), LoadOptions()))

    def reload(self, id: ModelId) -> None:
        """It has no requests now; the live states it left go with it."""
        self.loop.models.connect(FaultyEngine(self.engine, ComputeFaults()))
        self.loop.unload(id)
        self.check()
        self.load(id)

    def add(self, submission: Submission) -> None:
        self.num_added += submission.num_choices
        self.desk.note(submission)
        self.loop.add(submission)

    def step(self) -> None:
        """One engine step; workers get their turn when nothing else can move."""
        num_wakes = self.num_wakes
        if not self.loop.step() and self.loop.is_busy:
            is_pausing = self.guard is not None and self.guard.is_pausing
            # A turn is held for a few steps at most, whatever becomes of the prompt that it is held for.
            tries = range(self.plan.limits.max_held)
            has_moved = self.lane.run() or is_pausing or any(self.loop.step() for _ in tries)
            assert has_moved or self.num_wakes > num_wakes, "everything waits and nothing is under way"
        limits = self.plan.limits
        for run in self.loop._in_phase(Phase.PREFILLING):
            assert run.num_waited <= limits.aging * limits.max_batch, "a prompt starves"

    def _wake(self) -> None:
        self.num_wakes += 1

    def check(self) -> None:
        assert self.hot.check_integrity() == []
        assert self.live.check_integrity() == []
        if self.memory is not None:
            assert self.memory.check_integrity().problems == ()
            usage = self.memory.usage()
            assert usage.stored_bytes <= usage.quota_bytes

    def check_idle(self) -> None:
        """Nothing is left of requests that ended."""
        self.check()
        assert not self.cache.tiers.open
        assert self.hot.usage().num_pinned == 0
        assert self.loop.images.used_bytes == 0, "images are in use"
        assert self.loop.images.check_integrity() == []
        assert self.inbox.num_left_queue == self.num_added, "places in the queue are lost or given back twice"
        assert [model.open_ids() for model in self.engine.loaded] == [frozenset()] * len(self.engine.loaded)
        assert sum(len(model.left_ids()) for model in self.engine.loaded) == self.live.usage().num_states

    def _defect(self, operation: str) -> Exception | None:
        """What the port forbids: an opening or closing that raises; closing does so once, and then it works."""
        was_last, self._failed_last = self._failed_last, ""
        if operation not in DEFECTS or operation == was_last or self._random.random() >= self.plan.defect_rate:
            return None
        self._failed_last = operation
        self.num_injected += operation not in RETRIED
        return RuntimeError(f"injected into {operation}")

    def _hook(self) -> Callable[[str, SequenceId | None, int], None]:
        def hook(operation: str, id: SequenceId | None, number: int) -> None:
            if id is not None and self._random.random() < self.plan.failure_rate:
                self.num_injected += 1
                raise ComputeFailed(f"injected into {operation} {number} of {id}")

        return hook
