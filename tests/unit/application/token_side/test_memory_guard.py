"""The memory guard: its counts, its readings and clearing, its budgets and its events."""

from dataclasses import replace
from typing import Any

import pytest

from adapters.fake.environment import FakeClock
from application.events import PressureRelieved
from application.services.memory_leases import Lease, Purpose, Refused
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.live_tier import LiveTier
from application.services.token_side.memory_guard import HELD_STEPS, LASTING_STEPS, MemoryGuard
from application.services.token_side.memory_readings import IDLE_STEPS, READ_EVERY_STEPS
from domain.memory.ledger import MemoryLimits
from domain.memory.pressure import Level
from domain.memory.shape import MemoryShape, StateCost, StepCost
from domain.prefix.record import HostPayload, Record, TensorSpec
from domain.priority import Priority
from domain.scheduling.plan_step import plan_step
from domain.scheduling.sequence import Phase
from domain.scheduling.step_values import SequenceView, StepLimits
from tests.support.engines.guards import FakeMemory
from tests.support.engines.sequence_views import view_of
from tests.support.stores.store_records import sized_record
from tests.support.telemetry.recording import RecordingEvents

SHAPE = MemoryShape(states=(StateCost(bytes_per_token=1, step=1),), step=StepCost(token_bytes=1))
LIMITS = MemoryLimits(total_bytes=100_000, low_bytes=80_000, high_bytes=90_000, hard_bytes=95_000)
CHUNK = 512
STEPS = StepLimits(max_batch=4, prefill_budget=CHUNK, grid=CHUNK)


class Bench:
    """A guard with everything around it. `kept_bytes`: what the backend freed and keeps."""

    def __init__(
        self,
        limits: MemoryLimits | None = LIMITS,
        hot_bytes: int = 20_000,
        held_bytes: int = 1_000,
        *,
        host: FakeMemory | None = None,
    ) -> None:
        self.memory, self.events = FakeMemory(200_000, held_bytes, 150_000), RecordingEvents()
        self.hot, live = HotTier(hot_bytes), LiveTier()
        self.leases = live.memory
        self.queued_bytes = self.num_cleared = 0
        self.guard = MemoryGuard(
            probe=self.memory,
            limits=limits,
            hot=self.hot,
            live=live,
            queued_bytes=lambda: self.queued_bytes,
            steps=STEPS,
            events=self.events,
            clock=FakeClock(),
            host=host,
        )
        self.guard.clear_with(self.clear)

    def load(self, num_bytes: int, *, expected_bytes: int | None = None) -> Lease:
        lease = self.leases.reserve(Purpose.WEIGHTS, expected_bytes or num_bytes)
        assert isinstance(lease, Lease)
        lease.resize(num_bytes)
        self.guard.models_changed(is_loaded=True)
        return lease

    def clear(self) -> None:
        self.num_cleared += 1
        reading = self.memory.read()
        self.memory.hold((reading.held_bytes or 0) - reading.cached_bytes)

    def budget(self, *views: SequenceView):
        return self.guard.budget(views, {view.id: SHAPE for view in views})

    def actions(self) -> list[str]:
        return [event.kind for event in self.events.of(PressureRelieved)]


def view(id: int, phase: Phase, num_computed: int, num_prompt: int, num_new: int = 100) -> Any:
    charge = Bench().guard.charge_bytes(SHAPE, num_prompt, num_new)
    return view_of(id, phase, num_prompt, num_computed, charge_bytes=charge)


def test_without_a_limit_nothing_is_bounded_and_all_the_same_counted():
    bench = Bench(limits=None)
    bench.load(900)
    budget = bench.budget(view(1, Phase.DECODING, 5_000, 4_000))
    assert (budget.room_bytes, budget.admits, budget.preempt_bytes) == (None, True, 0)
    assert bench.guard.ledger.weight_bytes == 900
    assert bench.guard.ledger.state_bytes > 0


def test_every_purpose_is_counted():
    bench = Bench(held_bytes=1_500)
    bench.load(1_000)
    bench.hot.put([sized_record(1, 100)])
    bench.queued_bytes = 300
    bench.leases.reserve(Purpose.AHEAD, 700)
    bench.budget(view(1, Phase.PREFILLING, 1_024, 4_000), view(2, Phase.DECODING, 2_050, 2_000))
    ledger = bench.guard.ledger
    assert (ledger.weight_bytes, ledger.other_bytes, ledger.queued_bytes, ledger.flight_bytes) == (1_000, 500, 300, 700)
    assert ledger.hot_bytes == bench.hot.usage().used_bytes > 100
    assert ledger.state_bytes == 1_024 + 2_100  # what decodes grows in steps, and no further than its charge
    assert ledger.growth_bytes == 4_100 - 1_024
    assert ledger.transient_bytes > 2 * 512  # a chunk's growth and its copy, and what the layer works on


def host_record(number: int, size_bytes: int) -> Record:
    """As `sized_record`, of state that lies in host memory."""
    record = sized_record(number, size_bytes)
    payload = HostPayload((TensorSpec("uint8", (size_bytes,)),), (memoryview(bytes(size_bytes)),))
    return replace(record, groups={group: payload for group in record.groups})


@pytest.mark.parametrize("host", [FakeMemory(), None], ids=["of a GPU", "of this machine"])
def test_state_counts_where_it_lies(host: FakeMemory | None):
    """On a GPU the hot tier holds both: what was computed there, and what came from the store."""
    bench = Bench(host=host)
    bench.hot.put([sized_record(1, 3_000)])
    bench.budget()
    assert bench.guard.ledger.hot_bytes == bench.hot.usage().used_bytes
    bench.hot.put([host_record(2, 7_000)])
    bench.budget()
    elsewhere = 0 if host is None else 7_000
    assert bench.guard.ledger.hot_bytes == bench.hot.usage().used_bytes - elsewhere


def test_host_memory_beside_a_gpu_bounds_kept_prefixes_and_fetches():
    """What came from the store lies there, and so does what waits for it."""
    host = FakeMemory(total_bytes=200_000, held_bytes=1_000, available_bytes=99_000)
    bench = Bench(hot_bytes=60_000, host=host)
    bench.hot.put([host_record(number, 1_000) for number in range(20)])
    kept = bench.hot.usage().used_bytes
    host.hold(85_000)
    bench.budget()
    assert bench.hot.usage().used_bytes == kept, "above the low mark it takes nothing more"
    assert bench.hot.budget_bytes == kept
    assert isinstance(bench.leases.reserve(Purpose.FETCHES, 10_000), Lease)
    assert isinstance(bench.leases.reserve(Purpose.AHEAD, 1), Refused), "95,000 are the hard mark"
    host.hold(93_000)
    bench.budget()
    assert bench.hot.usage().used_bytes <= kept - 5_000
    host.hold(10_000)
    for _ in range(20):
        bench.budget()
    assert bench.hot.budget_bytes == 60_000


def test_freed_buffers_are_cleared_before_a_reading_decides():
    bench = Bench()
    bench.memory.hold(94_000, cached_bytes=80_000)
    budget = bench.budget(view(1, Phase.DECODING, 5_000, 4_000), view(2, Phase.QUEUED, 0, 4_000))
    assert (bench.num_cleared, bench.actions()) == (1, ["clear_cache"])
    assert budget.admits
    assert (budget.room_bytes or 0) > 50_000


def test_clearing_that_does_not_help_is_not_repeated_in_every_step():
    bench = Bench()
    bench.memory.hold(94_000)
    for _ in range(10):
        bench.budget(view(1, Phase.DECODING, 5_000, 4_000))
    assert bench.num_cleared == 1


def test_freed_memory_of_the_allocator_preempts_no_sequence():
    """Every step leaves freed memory behind that counts as held, and more of it than there is room."""
    bench, alone = Bench(), view(1, Phase.PREFILLING, 2_048, 40_000)
    bench.guard.clear_with(lambda: bench.memory.hold(82_000))  # enough to be read in every step
    for _ in range(10):
        bench.memory.hold(99_900)
        assert not bench.budget(alone).preempt_bytes
    bench.guard.clear_with(lambda: bench.memory.hold(99_900))
    bench.memory.hold(99_900)
    assert bench.budget(alone).preempt_bytes, "of what clearing does not give back"


def test_a_turn_waits_for_the_store_but_not_for_one_that_hangs():
    bench, alone = Bench(), view(1, Phase.PREFILLING, 2_048, 40_000)
    bench.load(90_500)
    bench.queued_bytes = 4_000
    held = [bench.budget(alone).is_held for _ in range(HELD_STEPS)]
    assert all(held)
    assert plan_step([alone], STEPS, bench.budget(alone)).preempt == (alone.id,)


def test_freed_memory_does_not_count_as_growth_of_the_process():
    bench, alone = Bench(), view(1, Phase.DECODING, 500, 400)
    bench.load(900)
    bench.guard.clear_with(lambda: bench.memory.hold(1_000))
    for _ in range(3):  # in steps that follow each other: a request that ends leaves much behind, and so does the next
        bench.memory.hold(94_000)
        bench.budget(alone)
        bench.memory.hold(94_000)
        bench.budget()
        assert bench.guard.ledger.other_bytes == 100


def test_an_idle_engine_gives_back_what_it_freed_once():
    bench = Bench()
    for num_cleared in (1, 2):
        bench.budget(view(1, Phase.DECODING, 500, 400))
        bench.memory.hold(20_000, cached_bytes=10_000)
        for _ in range(IDLE_STEPS - 1):
            bench.budget()
        assert bench.num_cleared == num_cleared - 1, "a pause between two requests is none"
        for _ in range(2 * IDLE_STEPS):
            bench.budget()
        assert bench.num_cleared == num_cleared
    assert bench.memory.read().held_bytes == 10_000


def test_an_idle_engine_gives_back_again_once_less_is_kept():
    """As when the cache is cleared, or a slow store has taken in what waited for it, a piece a look."""
    bench = Bench()
    lease = bench.load(900)
    bench.hot.put([sized_record(1, 1_000)])
    bench.queued_bytes = 300
    num_cleared = bench.num_cleared

    def rest() -> int:
        nonlocal num_cleared
        for _ in range(3 * IDLE_STEPS):
            bench.budget()
        before, num_cleared = num_cleared, bench.num_cleared
        return num_cleared - before

    assert rest() == 1
    bench.hot.clear([sized_record(1, 1_000).key.namespace])
    assert rest() == 1
    lease.end()
    bench.guard.models_changed(is_loaded=False)
    assert rest() == 1
    for bench.queued_bytes in (200, 100, 0):
        bench.budget()
    assert rest() == 1, "once all of it is gone"
    bench.queued_bytes = 300
    assert rest() == 0, "what comes frees nothing"


def test_memory_that_an_allocator_keeps_refuses_no_request_while_idle():
    bench = Bench()
    bench.load(900)
    bench.memory.hold(99_000)
    waiting = view(1, Phase.QUEUED, 0, 40_000)
    budget = [bench.budget(waiting) for _ in range(40)][-1]
    assert budget.admits
    assert (budget.room_bytes or 0) >= waiting.charge_bytes


def test_a_process_that_did_grow_is_counted_while_nothing_runs():
    bench = Bench()
    bench.load(900)
    bench.memory.hold(85_000)
    bench.budget(view(1, Phase.QUEUED, 0, 40_000))
    assert bench.guard.ledger.other_bytes == 100 + LIMITS.total_bytes // 8


def test_a_load_under_traffic_does_not_inflate_the_process():
    """What a step takes for a moment is held while another model is loaded, and by no means the process's own."""
    bench, running = Bench(), view(1, Phase.DECODING, 5_000, 4_000)
    bench.load(900)
    bench.budget(running)
    bench.memory.hold(40_000)
    bench.load(10_000)
    bench.memory.hold(16_000)
    bench.budget(running)
    bench.budget()
    assert bench.guard.ledger.other_bytes == 100


@pytest.mark.parametrize(
    ("other", "beyond_bytes"),
    [(None, 2 * CHUNK), (view(2, Phase.DECODING, 900, 800), 2 * CHUNK), (view(2, Phase.PREFILLING, 0, 4_000), 0)],
    ids=["alone", "decodes", "prefills"],
)
def test_a_waiting_sequence_needs_its_last_chunk_beyond_its_charge(other: SequenceView | None, beyond_bytes: int):
    """The chunk's copy and its work, unless those of another prompt are counted already: they take turns."""
    bench, queued = Bench(), view(1, Phase.QUEUED, 0, 4_000, num_new=0)
    others = () if other is None else (other,)
    before = bench.budget(*others).room_bytes
    assert (before or 0) - (bench.budget(*others, queued).room_bytes or 0) == beyond_bytes


def test_the_hot_tier_shrinks_for_a_waiting_request_and_grows_back():
    bench = Bench(hot_bytes=40_000)
    bench.hot.put([sized_record(number, 1_000) for number in range(15)])
    before = bench.hot.usage().used_bytes
    assert before > 25_000
    waiting = view(1, Phase.QUEUED, 0, 75_000)
    budget = bench.budget(waiting)
    assert bench.actions() == ["shrink_hot"]
    assert (budget.room_bytes or 0) >= waiting.charge_bytes
    for _ in range(20):
        bench.budget()
    assert bench.hot.budget_bytes == 40_000
    assert "grow_hot" in bench.actions()


@pytest.mark.parametrize(
    ("phase", "priority"),
    [
        (Phase.PREEMPTED, Priority.BATCH),  # it was preempted, and comes after who is no batch all the same
        (Phase.QUEUED, Priority.INTERACTIVE),  # the other is a batch sequence, passed by as many as there may be
    ],
)
def test_room_is_made_for_the_sequence_that_is_admitted_next(phase: Phase, priority: Priority):
    bench = Bench(hot_bytes=40_000)
    bench.hot.put([sized_record(number, 1_000) for number in range(15)])
    other = Priority.INTERACTIVE if priority is Priority.BATCH else Priority.BATCH
    large = replace(view(1, Phase.QUEUED, 0, 75_000), priority=other, num_waited=STEPS.patience)
    small = replace(view(2, phase, 0, 1_000), priority=priority)
    plan = plan_step([large, small], STEPS, bench.budget(large, small))
    assert large.id in plan.admit, "nobody computes, and nobody is admitted either"


@pytest.mark.parametrize("asks", ["load", "fetch"])
def test_the_hot_tier_makes_room_for_a_model_and_for_a_prefix_that_is_waited_for(asks: str):
    bench = Bench(hot_bytes=40_000)
    bench.hot.put([sized_record(number, 1_000) for number in range(15)])
    before = bench.hot.usage().used_bytes
    bench.budget()
    if asks == "load":
        assert isinstance(bench.leases.reserve(Purpose.WEIGHTS, 80_000), Lease)
    else:
        bench.leases.open(0)
        assert isinstance(bench.leases.reserve(Purpose.FETCHES, 75_000), Refused)
        bench.budget(view(9, Phase.RESTORING, 0, 100))
    assert bench.actions() == ["shrink_hot"]
    assert bench.hot.usage().used_bytes < before


def test_below_the_low_mark_a_reading_stands_for_some_steps():
    bench, decoding = Bench(), view(1, Phase.DECODING, 5_000, 4_000)
    readings: list[int | None] = []
    bench.budget(decoding)
    bench.memory.hold(50_000)
    for _ in range(READ_EVERY_STEPS // (1 + LASTING_STEPS) + 1):
        assert bench.budget(decoding).lasts == LASTING_STEPS
        readings.append(bench.guard.ledger.reading_bytes)
    assert readings == [1_000, 50_000], "a step counts with those for which its budget lasts"


def test_a_budget_lasts_while_all_decode_below_the_high_mark():
    decoding = view(1, Phase.DECODING, 5_000, 4_000)
    for other in (Phase.QUEUED, Phase.RESTORING, Phase.PREFILLING):
        assert Bench().budget(decoding, view(2, other, 0, 100)).lasts == 0
    assert Bench().budget(decoding, view(2, Phase.DECODING, 200, 100)).lasts == LASTING_STEPS
    for held_bytes in (LIMITS.low_bytes + 5_000, LIMITS.high_bytes):
        assert Bench(held_bytes=held_bytes).budget(view(1, Phase.DECODING, 9_000, 8_000)).lasts == LASTING_STEPS
    assert Bench(held_bytes=LIMITS.high_bytes + 1).budget(view(1, Phase.DECODING, 9_000, 8_000)).lasts == 0


def test_near_the_marks_every_plan_reads():
    bench, running = Bench(hot_bytes=0), view(1, Phase.DECODING, 5_000, 4_000)
    bench.memory.hold(LIMITS.low_bytes)
    bench.budget(running)
    bench.memory.hold(LIMITS.low_bytes + 1_000)
    bench.budget(running)
    assert bench.guard.level is Level.CALM
    assert bench.guard.ledger.reading_bytes == LIMITS.low_bytes + 1_000


def test_look_ahead_ends_while_admission_is_paused():
    bench = Bench()
    bench.budget()
    assert bench.leases.ahead_bytes == LIMITS.total_bytes // 16
    bench.memory.hold(96_000)
    budget = bench.budget(view(1, Phase.DECODING, 5_000, 4_000), view(2, Phase.DECODING, 5_000, 4_000))
    assert not budget.admits
    assert bench.leases.ahead_bytes == 0
    assert "pause" in bench.actions()


def test_other_processes_that_leave_less_lower_the_marks():
    bench = Bench()
    bench.memory.leave(10_000)
    bench.memory.hold(40_000)
    budget = bench.budget(view(1, Phase.DECODING, 5_000, 4_000), view(2, Phase.QUEUED, 0, 4_000))
    assert (budget.room_bytes or 0) <= 10_000


def test_the_ledger_says_what_the_process_holds_and_the_machine_has_left():
    bench = Bench()
    bench.memory.hold(3_000, 1_000)
    bench.memory.leave(60_000)
    bench.budget()
    assert (bench.guard.ledger.process_bytes, bench.guard.ledger.available_bytes) == (3_000, 60_000)


def test_a_model_has_what_the_others_leave():
    bench = Bench()
    lease = bench.load(60_000)
    assert isinstance(bench.leases.reserve(Purpose.WEIGHTS, 30_000), Lease)
    assert bench.leases.reserve(Purpose.WEIGHTS, 10_000) == Refused(LIMITS.hard_bytes - 90_000)
    lease.end()
    bench.guard.models_changed(is_loaded=False)
    assert bench.leases.free_bytes() == LIMITS.hard_bytes - 30_000
