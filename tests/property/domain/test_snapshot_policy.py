"""Snapshots are few, in range and where they are wanted; thinning keeps what is protected and bounds the rest."""

from math import log2

from hypothesis import given
from hypothesis import strategies as st

from adapters.fake import ATTENTION, HYBRID
from domain.prefix.index import ReuseRules
from domain.prefix.prompt_content import BlockGrid, ForkKind, ForkPoint
from domain.prefix.snapshot_policy import (
    MAX_TURNS,
    MIN_GAP,
    SHORT_TURN,
    lattice,
    plan_snapshots,
    thin_snapshots,
)

grids = st.builds(BlockGrid, st.just(256), st.sampled_from([256, 512, 2048]), st.booleans())
rules = st.builds(ReuseRules.of, st.sampled_from([ATTENTION, HYBRID]), grids)
lengths = st.integers(1, 200_000)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, tuple[ForkPoint, ...]]:
    """A prompt length and fork points as a template gives them: one of each kind, many turns."""
    length = draw(lengths)
    turns = draw(st.sets(st.integers(1, length), max_size=12))
    forks = [ForkPoint(position, ForkKind.TURN) for position in turns]
    for kind in (ForkKind.SYSTEM_END, ForkKind.NEXT_TURN, ForkKind.MORE_SAID):
        if draw(st.booleans()):
            forks.append(ForkPoint(draw(st.integers(1, length)), kind))
    return length, tuple(sorted(forks, key=lambda fork: fork.position))


@given(prompts(), rules, st.integers(0, 200_000))
def test_positions_are_ascending_in_range_and_few(
    prompt: tuple[int, tuple[ForkPoint, ...]], rules: ReuseRules, start: int
) -> None:
    length, forks = prompt
    planned = plan_snapshots(length, start, forks, rules)
    assert list(planned) == sorted(set(planned))
    assert all(start < position < length for position in planned)
    assert len(planned) <= MAX_TURNS + 4 + (log2(length) if rules.needs_snapshots else 0)
    if rules.grid.is_exact:
        assert all(position % rules.grid.step == 0 for position in planned)


@given(prompts(), rules)
def test_the_end_and_the_best_forks_always_have_one(
    prompt: tuple[int, tuple[ForkPoint, ...]], rules: ReuseRules
) -> None:
    length, forks = prompt
    planned = plan_snapshots(length, 0, forks, rules)
    kinds = {ForkKind.SYSTEM_END, ForkKind.NEXT_TURN}
    best = {min(fork.position, length - 1) for fork in forks if fork.kind in kinds} | {length - 1}
    if rules.grid.is_exact:
        best = {position // rules.grid.step * rules.grid.step for position in best}
    if not rules.needs_snapshots:
        best = {position for position in best if position % rules.grid.block_size}
    assert best - {0} <= set(planned)


def test_the_end_has_one_however_close_another_fork_lies() -> None:
    grid, forks = BlockGrid(256, 4096), [ForkPoint(500, ForkKind.MORE_SAID), ForkPoint(507, ForkKind.NEXT_TURN)]
    for layout in (HYBRID, ATTENTION):
        assert plan_snapshots(507, 0, forks, ReuseRules.of(layout, grid)) == (500, 506)


def test_a_short_turn_is_cut_only_where_the_next_one_branches_and_at_its_end() -> None:
    rules = ReuseRules.of(HYBRID, BlockGrid(256, 512))
    forks = [ForkPoint(895, ForkKind.TURN), ForkPoint(907, ForkKind.MORE_SAID), ForkPoint(915, ForkKind.NEXT_TURN)]
    assert plan_snapshots(920, 870, forks, rules) == (915, 919)
    assert plan_snapshots(915, 870, forks, rules) == (914,)
    assert plan_snapshots(915, 900, forks, rules) == (914,)


def test_continuing_the_last_message_is_expected_only_where_it_would_save_much() -> None:
    rules, fork = ReuseRules.of(HYBRID, BlockGrid(256, 512)), ForkPoint(907, ForkKind.MORE_SAID)
    assert plan_snapshots(915, 908 - SHORT_TURN, [fork], rules) == (914,)
    assert plan_snapshots(915, 907 - SHORT_TURN, [fork], rules) == (907, 914)
    assert plan_snapshots(915, 908 - SHORT_TURN, [fork], ReuseRules.of(ATTENTION, BlockGrid(256, 512))) == (907, 914)


def test_a_lattice_position_within_a_short_turn_is_skipped() -> None:
    rules = ReuseRules.of(HYBRID, BlockGrid(256, 512))
    assert plan_snapshots(1100, 1025 - SHORT_TURN, (), rules) == (1099,)
    assert plan_snapshots(1100, 1024 - SHORT_TURN, (), rules) == (1024, 1099)
    assert plan_snapshots(1100, 0, (), rules) == (512, 1024, 1099)
    assert plan_snapshots(1100, 512, (), rules) == (1024, 1099)


@given(lengths, st.sampled_from([256, 512, 2048]))
def test_any_edit_in_the_middle_is_near_a_lattice_point(end: int, grid: int) -> None:
    """Between the start and the end, a branch at distance d from the end finds a point within max(d, grid) before."""
    points = (0, *lattice(end, grid), end)
    assert list(points) == sorted(set(points))
    assert all(position % grid == 0 for position in points[:-1])
    assert len(points) - 2 <= log2(max(1.0, end / grid)) + 2
    for distance in {1, grid // 2, grid, 3 * grid, end // 2, end - 1}:
        branch = end - distance
        if 0 <= branch < end:
            nearest = max(point for point in points if point <= branch)
            assert branch - nearest <= max(distance, grid)


def test_turns_just_before_the_next_turn_are_skipped_and_only_the_last_kept() -> None:
    forks = [ForkPoint(at, ForkKind.TURN) for at in (100, 200, 300, 400, 500 - MIN_GAP)]
    forks.append(ForkPoint(500, ForkKind.NEXT_TURN))
    rules = ReuseRules.of(HYBRID, BlockGrid(256, 4096))
    assert plan_snapshots(510, 0, forks, rules) == (300, 400, 500, 509)
    assert plan_snapshots(510, 400, forks, rules) == (500, 509)


def test_an_attention_only_model_takes_none_at_block_boundaries() -> None:
    rules = ReuseRules.of(ATTENTION, BlockGrid(256, 512))
    forks = [ForkPoint(512, ForkKind.SYSTEM_END), ForkPoint(1000, ForkKind.NEXT_TURN)]
    assert plan_snapshots(1025, 0, forks, rules) == (1000,)


snapshot_sets = st.sets(st.integers(1, 100_000), max_size=200)


@given(snapshot_sets, snapshot_sets, snapshot_sets, st.integers(0, 50_000))
def test_thinning_keeps_the_protected_and_bounds_the_rest(
    positions: set[int], protected: set[int], preferred: set[int], beyond: int
) -> None:
    end = max(positions, default=0) + beyond
    dropped = thin_snapshots(sorted(positions), end, protected, preferred)
    kept = positions - set(dropped)
    assert set(dropped) <= positions - protected
    assert len(kept - protected) <= 2 * (log2(end + 1) + 2)
    assert not thin_snapshots(sorted(kept), end, protected, preferred)
    for position in dropped:
        assert any(other < position and end - other <= 2 * (end - position) for other in kept - protected)
        if position in preferred:
            bits = (end - position).bit_length()
            peers = [other for other in kept - protected if (end - other).bit_length() == bits]
            assert len(peers) == 2
            assert max(peers) > position
            assert max(peers) in preferred
