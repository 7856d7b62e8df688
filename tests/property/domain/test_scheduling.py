"""The step planner over whole random lives of sequences: budgets, fair turns, canonical chunks, no starvation."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from domain.ids import SequenceId
from domain.priority import Priority
from domain.scheduling.plan_step import next_prompt_chunk, plan_step
from domain.scheduling.sequence import Phase
from domain.scheduling.step_values import (
    DecodingView,
    PrefillChunk,
    PrefillingView,
    RestoringView,
    StepBudget,
    StepClock,
    StepLimits,
    StepPace,
    StepPlan,
    TakeOver,
    WaitingView,
)
from tests.support.engines.sequence_views import moved, view_of

GRID = 16
ROOM = 150


@dataclass
class Life:
    """A sequence as the engine would move it along. `num_rows`: tokens of the rows that are left behind its prompt."""

    view: Any
    num_prompt: int
    stops: tuple[int, ...]
    arrival: int
    num_to_decode: int
    num_rows: int
    num_to_restore: int = 0


def by_arrival(drawn: tuple[Any, ...]) -> int:
    return int(drawn[0])


lives = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(1, 100),
        st.integers(1, 8),
        st.lists(st.integers(1, 99), max_size=3).map(lambda stops: tuple(sorted(stops))),
        st.sampled_from(Priority),
        st.just(0) | st.integers(1, 6 * GRID),
    ),
    min_size=1,
    max_size=12,
)
limits = st.builds(
    StepLimits,
    max_batch=st.integers(1, 6),
    prefill_budget=st.integers(GRID, 4 * GRID),
    grid=st.just(GRID),
    max_last_chunk=st.integers(1, GRID),
    aging=st.integers(2, 4),
    patience=st.integers(0, 3),
)


Drawn = list[tuple[int, int, int, tuple[int, ...], Priority, int]]


class Run:
    """Plays lives with budgets and times that luck draws, and checks every plan. Some have rows behind their prompt."""

    def __init__(
        self,
        drawn: Drawn,
        limits: StepLimits,
        seed: int,
        *,
        is_tight: bool,
    ) -> None:
        self.limits = limits
        self.lives: list[Life] = []
        self.waiting = [
            Life(
                view_of(index, Phase.QUEUED, end, charge_bytes=end, priority=priority),
                end,
                stops,
                arrival,
                num_to_decode,
                num_rows,
            )
            for index, (arrival, end, num_to_decode, stops, priority, num_rows) in enumerate(
                sorted(drawn, key=by_arrival)
            )
        ]
        self.num_turns = self.num_held = 0
        self._random = Random(seed)
        self._is_tight = is_tight

    def play(self) -> None:
        for step in range(3_000):
            while self.waiting and self.waiting[0].arrival <= step:
                self.lives.append(self.waiting.pop(0))
            if not self.lives and not self.waiting:
                return
            for life in self.lives:
                if isinstance(life.view, RestoringView):
                    life.num_to_restore -= 1
                    if life.num_to_restore < 0:
                        life.view = moved(life.view, Phase.PREFILLING, stops=life.stops)
            self._step(self._budget())
        raise AssertionError("somebody starves")

    def _budget(self) -> StepBudget:
        if not self._is_tight:
            return StepBudget()
        held = sum(life.view.charge_bytes for life in self.lives if not isinstance(life.view, WaitingView))
        preempts = self._random.random() < 0.05
        return StepBudget(
            room_bytes=ROOM - held,
            admits=self._random.random() < 0.9,
            preempt_bytes=self._random.randint(1, 2 * ROOM) if preempts else 0,
        )

    def _step(self, budget: StepBudget) -> None:
        turn_s, decode_s = self._random.choice((0.0, 1.0)), self._random.random()
        pace = StepPace(self.num_turns, turn_s, decode_s, 1, num_held=self.num_held)
        plan = plan_step([life.view for life in self.lives], self.limits, budget, pace)
        self._check(plan, budget)
        self.num_held = self.num_held + 1 if plan.is_held else 0
        assert self.num_held <= self.limits.max_held
        self.num_turns += bool(plan.prefill)
        by_id = {life.view.id: life for life in self.lives}
        for id in plan.decode:
            by_id[id].num_to_decode -= 1
        for chunk in plan.prefill:
            life = by_id[chunk.id]
            if life.view.pass_tokens:
                life.num_rows -= chunk.end - chunk.start
                life.num_to_decode *= life.num_rows > 0
                life.view = replace(life.view, num_prompt=life.view.num_computed + life.num_rows)
            elif chunk.end == life.view.num_prompt and life.num_rows:
                left, size = chunk.end + life.num_rows, min(GRID, life.num_rows)
                life.view = replace(life.view, num_computed=chunk.end, num_prompt=left, pass_tokens=size)
            else:
                phase = Phase.DECODING if chunk.end == life.view.num_prompt else Phase.PREFILLING
                life.view = moved(life.view, phase, num_computed=chunk.end)
        for id in plan.preempt:
            view, num_prompt = by_id[id].view, by_id[id].num_prompt
            again = view.num_preempted + 1
            by_id[id].view = moved(view, Phase.PREEMPTED, num_prompt=num_prompt, num_preempted=again)
        for id in plan.admit:
            by_id[id].view = moved(by_id[id].view, Phase.RESTORING)
            by_id[id].num_to_restore = self._random.choice((0, 1, 5))
        for id, num_waited in plan.num_waited.items():
            by_id[id].view = replace(by_id[id].view, num_waited=num_waited)
        self.lives = [life for life in self.lives if life.num_to_decode > 0]
        for life in self.lives:
            if isinstance(life.view, PrefillingView):
                assert life.view.num_waited <= self.limits.aging * self.limits.max_batch

    def _check(self, plan: StepPlan, budget: StepBudget) -> None:
        views = {life.view.id: life.view for life in self.lives}
        self._check_chunks(plan.prefill, views)
        active = {id for id, view in views.items() if not isinstance(view, WaitingView)}
        assert set(plan.decode) == {id for id, view in views.items() if isinstance(view, DecodingView)}
        assert set(plan.preempt) <= active
        assert not (plan.preempt and plan.admit)
        assert len(active) + len(plan.admit) <= self.limits.max_batch
        assert bool(plan.preempt) == bool(budget.preempt_bytes and active)
        if len(active) > 1:
            assert len(plan.preempt) < len(active)
        if budget.room_bytes is not None:
            assert sum(views[id].charge_bytes for id in plan.admit) <= max(0, budget.room_bytes)
        assert budget.admits or not plan.admit
        for id in plan.admit:
            self._check_passed(id, views, plan)

    def _check_passed(self, id: SequenceId, views: dict[SequenceId, Any], plan: StepPlan) -> None:
        """Of those that came before, none is passed for ever."""
        for view in views.values():
            if view.id < id and isinstance(view, WaitingView) and view.id not in plan.admit:
                assert view.num_waited < self.limits.patience or views[id].is_preempted

    def _check_chunks(self, chunks: tuple[PrefillChunk, ...], views: dict[SequenceId, Any]) -> None:
        limits = self.limits
        num_tokens = sum(chunk.end - chunk.start for chunk in chunks)
        assert num_tokens <= limits.prefill_budget + limits.prefill_budget // 4
        reached = {id: view.num_computed for id, view in views.items() if isinstance(view, PrefillingView)}
        for chunk in chunks:
            view = views[chunk.id]
            assert isinstance(view, PrefillingView)
            assert reached[chunk.id] == chunk.start < chunk.end
            reached[chunk.id] = chunk.end
            if view.pass_tokens:
                assert chunk.end == min(chunk.start + view.pass_tokens, view.num_prompt)
                continue
            assert chunk.end == next_prompt_chunk(chunk.start, view.num_prompt, limits, view.stops)
            assert chunk.end < view.num_prompt or chunk.end - chunk.start <= limits.max_last_chunk
            is_rest = chunk.start % GRID != 0 and view.num_prompt - chunk.start <= GRID
            assert is_rest or chunk.end // GRID == chunk.start // GRID or chunk.end % GRID == 0
            assert not any(chunk.start < stop < chunk.end for stop in view.stops)


@given(lives, limits, st.integers(0, 999))
def test_everybody_is_served_in_fair_turns(drawn: Drawn, limits: StepLimits, seed: int) -> None:
    Run(drawn, limits, seed, is_tight=False).play()


@given(lives, limits, st.integers(0, 999))
def test_everybody_is_served_where_memory_is_short(drawn: Drawn, limits: StepLimits, seed: int) -> None:
    Run(drawn, limits, seed, is_tight=True).play()


LIMITS = StepLimits(8, GRID, GRID, max_last_chunk=4)


def view(id: int, phase: Phase, end: int = 160, **changes: Any) -> Any:
    return view_of(id, phase, end, **changes)


def test_a_short_prompt_goes_before_the_rest_of_a_long_one_in_every_turn() -> None:
    views = [view(0, Phase.PREFILLING, 10_000, num_waited=50), view(1, Phase.PREFILLING, 4)]
    for num_turns in range(8):
        plan = plan_step(views, LIMITS, pace=StepPace(num_turns))
        assert plan.prefill[0] == PrefillChunk(SequenceId(1), 0, 4), num_turns


def test_a_short_prompt_that_has_waited_longest_lets_nobody_pass_in_its_turn() -> None:
    limits = replace(LIMITS, prefill_budget=8 * GRID)
    views = [view(0, Phase.PREFILLING, 4, num_waited=9), view(1, Phase.PREFILLING, 10_000)]
    assert [plan_step(views, limits, pace=StepPace(turn)).prefill[0].id for turn in range(4)] == [0] * 4


def test_a_long_prompt_has_one_turn_in_four_behind_an_endless_stream_of_shorter_ones() -> None:
    long, num_chunks, num_turns = view(0, Phase.PREFILLING, 10_000), 0, 40
    for turn in range(num_turns):
        plan = plan_step([long, view(1 + turn, Phase.PREFILLING, 17)], LIMITS, pace=StepPace(turn))
        num_chunks += sum(chunk.id == 0 for chunk in plan.prefill)
        long = replace(long, num_waited=plan.num_waited[long.id])
    assert num_chunks == num_turns // LIMITS.aging


def test_a_turn_is_held_for_a_shorter_prompt_that_is_looked_up_but_not_for_long() -> None:
    long, short = view(0, Phase.PREFILLING, 10_000), view(1, Phase.QUEUED, 4)
    plan = plan_step([long, short], LIMITS)
    assert (plan.admit, plan.prefill, plan.is_held) == ((1,), (), True)
    held, short = 1, moved(short, Phase.RESTORING)
    while (plan := plan_step([long, short], LIMITS, pace=StepPace(num_held=held))).is_held:
        held += 1
    assert held == LIMITS.max_held
    assert plan.prefill
    longer = view(1, Phase.RESTORING, 20_000)
    assert plan_step([long, longer], LIMITS).prefill


def test_running_streams_have_their_share_of_the_time_between_two_turns() -> None:
    views = [view(0, Phase.DECODING), view(1, Phase.PREFILLING)]
    limits = replace(LIMITS, decode_share=0.25)
    owing = plan_step(views, limits, pace=StepPace(1, turn_s=0.9, decode_s=0.19, num_decodes=2, step_s=0.1))
    assert not owing.prefill
    assert owing.decode == (0,)
    assert plan_step(views, limits, pace=StepPace(1, 0.9, 0.201, 2, step_s=0.1)).prefill
    assert plan_step(views[1:], limits, pace=StepPace(1, turn_s=0.9)).prefill
    assert plan_step(views, limits, pace=StepPace(1, turn_s=0.9, num_decodes=64)).prefill


def test_a_stream_keeps_its_share_of_the_time_beside_a_flood_of_rows() -> None:
    pooled = {SequenceId(id): view(id, Phase.PREFILLING, 100 * GRID, pass_tokens=4 * GRID) for id in range(1, 5)}
    limits, clock, decode_ns, turns_ns = replace(LIMITS, prefill_budget=4 * GRID), StepClock(), 0, 0
    for _ in range(300):
        plan = plan_step([view(0, Phase.DECODING), *pooled.values()], limits, pace=clock.pace)
        assert plan.decode == (0,)
        clock.decoded(10)
        decode_ns += 10
        if plan.prefill:
            assert sum(chunk.end - chunk.start for chunk in plan.prefill) <= limits.prefill_budget
            clock.prefilled(70)
            turns_ns += 70
        for chunk in plan.prefill:
            left = pooled[chunk.id].num_prompt - (chunk.end - chunk.start)
            pooled[chunk.id] = replace(pooled[chunk.id], num_prompt=left)
    assert any(one.num_prompt < 90 * GRID for one in pooled.values())
    assert limits.decode_share <= decode_ns / (decode_ns + turns_ns) < limits.decode_share + 0.1


def test_batch_waits_for_interactive_up_to_the_patience() -> None:
    batch = view(0, Phase.QUEUED, priority=Priority.BATCH)
    limits, admitted = replace(LIMITS, max_batch=1, patience=3), list[int]()
    for number in range(1, 6):
        plan = plan_step([batch, view(number, Phase.QUEUED)], limits)
        admitted += plan.admit
        batch = replace(batch, num_waited=plan.num_waited.get(batch.id, 0))
    assert admitted == [1, 2, 3, 0, 5]


def test_turns_that_were_waited_for_before_a_preemption_are_not_counted_as_waiting_in_the_queue() -> None:
    views = [view(0, Phase.DECODING), view(1, Phase.PREFILLING, priority=Priority.BATCH, num_waited=LIMITS.patience)]
    plan = plan_step(views, LIMITS, StepBudget(preempt_bytes=1))
    assert (plan.preempt, plan.num_waited) == ((1,), {1: 0})


def test_what_finds_no_room_is_passed_up_to_the_patience() -> None:
    large, admitted = view(0, Phase.QUEUED, charge_bytes=100), list[int]()
    limits, small = replace(LIMITS, patience=2), view(1, Phase.QUEUED)
    for number in range(1, 5):
        small = view(number, Phase.QUEUED, charge_bytes=10)
        plan = plan_step([large, small], limits, StepBudget(room_bytes=50))
        admitted += plan.admit
        large = replace(large, num_waited=plan.num_waited.get(large.id, large.num_waited))
    assert admitted == [1, 2]
    assert plan_step([large, small], limits, StepBudget(room_bytes=100)).admit == (0,)


def test_of_two_that_would_take_the_same_state_over_one_is_charged_in_full() -> None:
    state = TakeOver(SequenceId(9), 90)
    views = [view(id, Phase.QUEUED, charge_bytes=100, takes_over=state) for id in range(2)]
    assert plan_step(views, LIMITS, StepBudget(room_bytes=20)).admit == (0,)
    assert plan_step(views, LIMITS, StepBudget(room_bytes=109)).admit == (0,)
    assert plan_step(views, LIMITS, StepBudget(room_bytes=110)).admit == (0, 1)
    assert plan_step(views, LIMITS, StepBudget(room_bytes=20, evicted=frozenset({state.state}))).admit == ()


def test_the_youngest_batch_sequence_goes_first_and_nobody_passes_who_was_preempted() -> None:
    views = [
        view(0, Phase.DECODING, charge_bytes=50),
        view(1, Phase.DECODING, charge_bytes=50, priority=Priority.BATCH),
        view(2, Phase.PREFILLING, charge_bytes=50, priority=Priority.BATCH),
        view(3, Phase.DECODING, charge_bytes=50),
        view(4, Phase.DECODING, charge_bytes=50, num_preempted=9),
    ]
    for preempt_bytes, expected in ((1, (2,)), (60, (2, 1)), (101, (2, 1, 3)), (999, (2, 1, 3, 0))):
        assert plan_step(views, LIMITS, StepBudget(preempt_bytes=preempt_bytes)).preempt == expected
    assert plan_step(views[:1], LIMITS, StepBudget(preempt_bytes=1)).preempt == (0,)
    queue = [view(0, Phase.PREEMPTED, charge_bytes=100), view(1, Phase.QUEUED, charge_bytes=10)]
    assert plan_step(queue, LIMITS, StepBudget(room_bytes=50)).admit == ()


def test_a_canonical_chunk_never_depends_on_where_the_prompt_ends_or_was_resumed_on_the_grid() -> None:
    limits = StepLimits(8, 64, GRID, max_last_chunk=4)
    assert [next_prompt_chunk(start, 50, limits) for start in (0, 16, 32, 48)] == [16, 32, 48, 50]
    assert [next_prompt_chunk(start, 49, limits) for start in (0, 16, 32, 48)] == [16, 32, 48, 49]
    assert [next_prompt_chunk(start, 48, limits) for start in (0, 16, 32, 47)] == [16, 32, 47, 48]


def test_a_short_rest_off_the_grid_is_computed_in_one_piece() -> None:
    limits = StepLimits(8, 64, GRID, max_last_chunk=4)
    assert next_prompt_chunk(30, 34, limits) == 34
    assert next_prompt_chunk(30, 46, limits) == 45
    assert next_prompt_chunk(30, 47, limits) == 32
    assert next_prompt_chunk(30, 46, limits, stops=(32, 45)) == 32


gaps_and_lengths = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=6)


@given(gaps_and_lengths, st.integers(0, 30), limits, st.lists(st.integers(1, 200), max_size=3))
def test_no_chunk_ends_inside_an_image_that_must_not_be_cut(
    drawn: list[tuple[int, int]], tail: int, limits: StepLimits, stops: list[int]
) -> None:
    whole, at = list[tuple[int, int]](), 0
    for gap, length in drawn:
        whole.append((at + gap, at + gap + length))
        at += gap + length
    num_prompt, start = max(at + tail, 1), 0
    longest = max([limits.grid, *(last - first for first, last in whole)])
    while start < num_prompt:
        end = next_prompt_chunk(start, num_prompt, limits, sorted(stops), whole)
        assert start < end <= start + longest
        assert not any(first < end < last for first, last in whole)
        plain = next_prompt_chunk(start, num_prompt, limits, sorted(stops))
        assert end == plain or any(first < plain < last or first < plain - 1 < last for first, last in whole)
        start = end


def test_a_prompt_waits_for_its_image_and_gives_its_turn_to_others() -> None:
    limits = StepLimits(8, 2 * GRID, GRID)
    waiting = view(1, Phase.PREFILLING, 60, blocked_at=20)
    other = view(2, Phase.PREFILLING, 100)
    assert plan_step([waiting, other], limits).prefill == (PrefillChunk(SequenceId(1), 0, 16), PrefillChunk(2, 0, 16))
    waiting = replace(waiting, num_computed=16)
    plan = plan_step([waiting, other], limits)
    assert plan.prefill == (PrefillChunk(SequenceId(2), 0, 16), PrefillChunk(SequenceId(2), 16, 32))
    assert plan.num_waited == {2: 0}, "it waits for a worker, not for the others"
    assert plan_step([waiting], limits).is_empty
    assert plan_step([replace(waiting, blocked_at=32)], limits).prefill == (PrefillChunk(SequenceId(1), 16, 32),)


def test_one_budget_serves_several_short_prompts() -> None:
    views = [view(index, Phase.PREFILLING, 10) for index in range(5)]
    plan = plan_step(views, StepLimits(8, 32, GRID))
    assert [(chunk.id, chunk.start, chunk.end) for chunk in plan.prefill] == [(0, 0, 10), (1, 0, 10), (2, 0, 10)]
