"""The step planner over whole random lives of sequences: budget, order of arrival, canonical chunks, no starvation."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from domain.ids import SequenceId
from domain.scheduling import PrefillChunk, SequenceView, StepLimits, next_prompt_chunk, plan_step
from domain.sequence import Phase

GRID = 16


@dataclass
class Life:
    """A sequence as the engine would move it along."""

    view: SequenceView
    arrival: int
    num_to_decode: int


lives = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(1, 100),
        st.integers(1, 8),
        st.lists(st.integers(1, 99), max_size=3).map(lambda stops: tuple(sorted(stops))),
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
)


def check_chunks(chunks: tuple[PrefillChunk, ...], views: dict[SequenceId, SequenceView], limits: StepLimits) -> None:
    assert sum(chunk.end - chunk.start for chunk in chunks) <= limits.prefill_budget
    reached = {id: view.num_computed for id, view in views.items()}
    for chunk in chunks:
        view = views[chunk.id]
        assert view.phase is Phase.PREFILLING
        assert reached[chunk.id] == chunk.start < chunk.end
        assert chunk.end == next_prompt_chunk(chunk.start, view.num_prompt, limits, view.stops)
        assert chunk.end < view.num_prompt or chunk.end - chunk.start <= limits.max_last_chunk
        is_rest = chunk.start % GRID != 0 and view.num_prompt - chunk.start <= GRID
        assert is_rest or chunk.end // GRID == chunk.start // GRID or chunk.end % GRID == 0
        assert not any(chunk.start < stop < chunk.end for stop in view.stops)
        reached[chunk.id] = chunk.end
    assert list(dict.fromkeys(chunk.id for chunk in chunks)) == sorted({chunk.id for chunk in chunks})


@given(lives, limits)
def test_everybody_is_served_in_order_within_the_budget(
    drawn: list[tuple[int, int, int, tuple[int, ...]]], limits: StepLimits
) -> None:
    drawn.sort(key=lambda life: life[0])
    waiting = [
        Life(SequenceView(SequenceId(index), Phase.QUEUED, 0, end, stops), arrival, num_to_decode)
        for index, (arrival, end, num_to_decode, stops) in enumerate(drawn)
    ]
    lives: list[Life] = []
    admitted: list[SequenceId] = []
    for step in range(2_000):
        while waiting and waiting[0].arrival <= step:
            lives.append(waiting.pop(0))
        if not lives and not waiting:
            break
        plan = plan_step([life.view for life in lives], limits)
        by_id = {life.view.id: life for life in lives}
        check_chunks(plan.prefill, {id: life.view for id, life in by_id.items()}, limits)
        assert set(plan.decode) == {life.view.id for life in lives if life.view.phase is Phase.DECODING}
        if any(life.view.phase is Phase.PREFILLING for life in lives):
            assert plan.prefill
        for id in plan.decode:
            by_id[id].num_to_decode -= 1
        for chunk in plan.prefill:
            life = by_id[chunk.id]
            phase = Phase.DECODING if chunk.end == life.view.num_prompt else Phase.PREFILLING
            life.view = replace(life.view, num_computed=chunk.end, phase=phase)
        for id in plan.admit:
            by_id[id].view = replace(by_id[id].view, phase=Phase.PREFILLING)
            admitted.append(id)
        lives = [life for life in lives if life.num_to_decode > 0]
        assert sum(life.view.phase is not Phase.QUEUED for life in lives) <= limits.max_batch
    assert not lives
    assert not waiting
    assert admitted == sorted(admitted) == [SequenceId(index) for index in range(len(drawn))]


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


def test_one_budget_serves_several_short_prompts() -> None:
    views = [SequenceView(SequenceId(index), Phase.PREFILLING, 0, 10) for index in range(5)]
    plan = plan_step(views, StepLimits(8, 32, GRID))
    assert [(chunk.id, chunk.start, chunk.end) for chunk in plan.prefill] == [(0, 0, 10), (1, 0, 10), (2, 0, 10)]
