"""Real services on a backend whose memory ends: the hard mark is never crossed, whatever is asked, and all end.

Every way on which a sequence comes to hold memory is walked (admitted, restored, fetched ahead, loaded, and
warmed, which is asking for no token), and a run fails when something is computed for whom the guard has not seen.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from adapters.fake import LAYOUTS, FakeClock, FakeEngine, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.events import PressureRelieved
from application.ports.compute import MemoryProbe
from application.ports.engine import Ended, Submission
from application.services.memory_leases import Purpose
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.live_tier import LiveTier
from application.services.prefix.store_tier import StoreTier
from application.services.prefix.tiers import PrefixTiers
from application.services.token_side.engine_loop import EngineLoop
from application.services.token_side.event_batcher import EventBatcher
from application.services.token_side.memory_guard import MemoryGuard
from domain.ids import ModelId, RequestId, SequenceId
from domain.memory.ledger import MemoryLimits
from domain.memory.shape import ImageCost, MemoryShape, StepCost
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.prompt_content import AHEAD_CHUNKS, BlockGrid
from domain.request.request import choice_id
from domain.request.sampling import SamplingParams
from domain.scheduling.step_values import SequenceView, StepBudget, StepLimits
from tests.simulation.memory.metered_engine import Meter, MeteredEngine
from tests.simulation.workload import BY_DIGEST, TOYS, VOCAB, Workload, is_broken
from tests.simulation.world import BLOCK, GRID, Inbox
from tests.support.effort import drawn
from tests.support.engines.finish_load import finish_load
from tests.support.engines.image_desk import ImageDesk
from tests.support.processes.lanes import HeldLane
from tests.support.stores.stepped_writer import SteppedWriter
from tests.support.telemetry.recording import RecordingEvents

MODEL = ModelId("toy")
LONGEST = 360
"""Tokens of the longest prompt and its answer."""

LARGEST = 35
"""Tokens of the largest image."""

TOKEN_BYTES = 200
"""For each token and layer: state weighs more than what the hot tier counts for a record's objects."""

MAX_STEPS = 3_000


def scaled(shape: MemoryShape) -> MemoryShape:
    """A toy's state, as heavy as a model's, with a step that takes something too."""
    states = tuple(replace(state, bytes_per_token=state.bytes_per_token * TOKEN_BYTES // 8) for state in shape.states)
    step = StepCost(base_bytes=1_000, token_bytes=50, seen_bytes=2, pair_bytes=1)
    tower = StepCost(base_bytes=20_000, token_bytes=2_500, pair_bytes=20)
    image = (
        ImageCost(prepared_bytes=1_500, feature_bytes=900, tower=tower) if shape.image != ImageCost() else ImageCost()
    )
    return replace(shape, weight_bytes=50_000, states=states, step=step, logit_bytes=20, sample_bytes=10, image=image)


class SeenGuard(MemoryGuard):
    """A guard that remembers the sequences it was asked about."""

    seen: frozenset[SequenceId] = frozenset()

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        self.seen = frozenset(view.id for view in views)
        return super().budget(views, shapes)


class BoundServer:
    """`room`: how many of the longest sequences fit beside weights and the process. `hot_share`, `live_share`: of that
    room. `probe_of`: returns what the guard reads."""

    def __init__(
        self,
        random: Random,
        layout: str,
        *,
        room: float,
        hot_share: float,
        live_share: float,
        max_batch: int,
        sees: bool = False,
        probe_of: Callable[[Meter], MemoryProbe] = lambda meter: meter,
    ) -> None:
        self.random, self.events = random, RecordingEvents()
        self.inbox, self.lane = Inbox(self.events), HeldLane()
        options = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0, layout=LAYOUTS[layout])
        options = replace(options, images=TOYS, image_is_whole=random.random() < 0.3) if sees else options
        shape = scaled(options.memory)
        room_bytes = int(room * shape.state_bytes(LONGEST, GRID)) + shape.peak_bytes(GRID, LONGEST)
        room_bytes += shape.tower_bytes(LARGEST, GRID) + shape.pixel_bytes(2 * LARGEST + AHEAD_CHUNKS * GRID)
        hard = 60_000 + room_bytes
        limits = MemoryLimits(int(hard / 0.95), int(hard * 0.84), int(hard * 0.93), hard)
        clock = FakeClock(tick_ns=10)
        batcher = EventBatcher(clock)
        batcher.connect(self.inbox.receive)
        self.hot, self.live = HotTier(int(hot_share * room_bytes)), LiveTier(int(live_share * room_bytes))
        self.writer = SteppedWriter(MemoryBlockStore(None))
        store = StoreTier(clock, batcher, self.writer, readers=self.lane, upkeep=self.lane)
        tiers = PrefixTiers(self.hot, store, self.live, hashing=self.lane)
        self.cache = PrefixCache(tiers, BlockGrid(BLOCK, GRID))
        self.meter = Meter(limits, self.hot, 10_000)
        # What waits for the store is in the hot tier as well until that lets go; the sum is never less than what is so.
        steps = StepLimits(max_batch, GRID, GRID, 8)
        self.guard = SeenGuard(
            probe=probe_of(self.meter),
            limits=limits,
            hot=self.hot,
            live=self.live,
            queued_bytes=lambda: self.writer.held_bytes,
            steps=steps,
            events=batcher,
            clock=clock,
        )
        self.guard.clear_with(self.meter.clear)
        self.loop = EngineLoop(batcher=batcher, prefix_cache=self.cache, guard=self.guard, limits=steps)
        self.inbox.desk = self.desk = ImageDesk(self.lane, self.loop.images.provide, BY_DIGEST)
        self.engine = MeteredEngine(FakeEngine({MODEL: options}), self.meter, scaled)
        self.loop.models.connect(self.engine)
        finish_load(self.loop.models.load(ModelSource(MODEL, "nowhere"), LoadOptions()))
        self.desk.prepare = self.meter.models[0].prepared
        self.meter.is_known = lambda id: id in self.guard.seen
        self.workload = Workload(random, [MODEL], sees=sees)
        self.asked: list[Submission] = []

    def submit(self) -> None:
        for talk, prompt in self.workload.draw(self.random.choice((1, 2, 6))):
            sampling = SamplingParams(temperature=0.0, seed=0)
            submission = Submission(
                id=RequestId(f"r{len(self.asked)}"),
                model=MODEL,
                prompt=prompt,
                sampling=sampling,
                seed=0,
                max_new_tokens=self.random.choice((0, 1, 20, 60)),
                cache_salt=talk.salt,
                num_choices=self.random.choice((1, 1, 2)),
            )
            if is_broken(prompt):
                continue
            self.asked.append(submission)
            self.desk.note(submission)
            self.loop.add(submission)

    def step(self) -> None:
        if self.loop.is_busy and not self.loop.step() and not self.lane.run():
            self.writer.pump(3)

    def finish(self) -> Counter[str]:
        for _ in range(MAX_STEPS):
            if not self.loop.is_busy:
                break
            self.step()
            self.writer.pump(1)  # as its thread does, whatever the steps do
        ends = [
            [item for item in self.inbox.items.get(choice_id(asked.id, choice), []) if isinstance(item, Ended)]
            for asked in self.asked
            for choice in range(asked.num_choices)
        ]
        assert all(len(found) == 1 for found in ends), "somebody waits for ever"
        return Counter(found[0].error.code if found[0].error else "ended" for found in ends)

    def actions(self) -> set[str]:
        return {event.kind for event in self.events.events if isinstance(event, PressureRelieved)}


def play(seed: int, *, sees: bool = False) -> tuple[BoundServer, Counter[str]]:
    random = Random(seed)
    server = BoundServer(
        random,
        random.choice([name for name in LAYOUTS if name != "unsupported"]),
        room=random.choice((1.0, 1.2, 2)),
        hot_share=random.choice((0.0, 0.3, 0.9)),
        live_share=random.choice((0.0, 0.3, 0.9)),
        max_batch=random.choice((2, 4, 12)),
        sees=sees,
    )
    for _ in range(50):
        action = random.choices(("submit", "step", "work", "pump", "cancel"), (3, 30, 6, 6, 1))[0]
        match action:
            case "submit":
                server.submit()
            case "step":
                server.step()
            case "work":
                server.lane.run()
            case "pump":
                server.writer.pump(random.randint(1, 10))
            case "cancel" if server.asked:
                server.loop.cancel(random.choice(server.asked).id)
            case _:
                pass
    counts = server.finish()
    assert server.meter.problems == [], server.meter.problems[:3]
    assert server.hot.check_integrity() == []
    assert server.live.check_integrity() == []
    assert server.cache.memory.held_bytes(Purpose.FETCHES, Purpose.AHEAD) + server.loop.images.used_bytes == 0
    assert server.loop.images.check_integrity() == []
    return server, counts


def play_all(seeds: range, *, sees: bool = False) -> tuple[Counter[str], set[str], Counter[str]]:
    """Returns the calls, the actions against pressure and how requests ended."""
    calls, actions, outcomes = Counter[str](), set[str](), Counter[str]()
    for seed in seeds:
        try:
            server, counts = play(seed, sees=sees)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        calls, actions, outcomes = calls + server.meter.num_calls, actions | server.actions(), outcomes + counts
    return calls, actions, outcomes


@pytest.mark.parametrize("part", range(2))
def test_the_hard_mark_is_never_crossed(part: int) -> None:
    calls, actions, outcomes = play_all(range(part, drawn(40), 2))
    # Every way was walked, memory was short, and no request failed for it.
    assert {"load", "open", "restore", "prefill", "start_decode", "decode", "capture_blocks"} <= calls.keys()
    assert {"keep_live", "take_over"} <= calls.keys()
    assert {"shrink_hot", "drop_live", "clear_cache"} <= actions
    assert outcomes.keys() == {"ended"}


def test_the_hard_mark_is_not_crossed_for_images_either() -> None:
    """By their pixels, which workers make, by passes of the tower, or by features that are used or kept."""
    calls, actions, outcomes = play_all(range(drawn(40)), sees=True)
    assert {"prepare", "encode_image", "restore", "take_over"} <= calls.keys()
    assert "drop_features" in actions
    assert outcomes.keys() == {"ended"}


def test_a_way_around_the_guard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a sequence that the planner does not see is admitted all the same."""
    see = SeenGuard.budget

    def blind(self: SeenGuard, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        return see(self, views[:-1], shapes)

    monkeypatch.setattr(SeenGuard, "budget", blind)
    with pytest.raises(AssertionError, match="which the guard has not seen"):
        play(0)


def test_a_guard_that_looks_away_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: everybody is admitted, whatever is left."""
    see = SeenGuard.budget

    def lax(self: SeenGuard, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        see(self, views, shapes)
        return StepBudget()

    monkeypatch.setattr(SeenGuard, "budget", lax)
    problems = [_problem(seed) for seed in range(8)]
    assert any("needs" in problem for problem in problems), problems


def _problem(seed: int) -> str:
    try:
        play(seed)
    except AssertionError as error:
        return str(error)
    return ""
