"""How much room a graph of operations takes, by hand-made graphs."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from domain.memory.eval_order import evaluation_order
from domain.memory.op_trace import MAX_GROUPS, Op, OpTrace, RunAhead
from domain.memory.shape import StepCost
from domain.memory.step_fit import fit_points, fit_step

AT_ONCE = RunAhead(1_000, 1_000_000)
ONE_BY_ONE = RunAhead(0, 0)


def chain(length: int, name: str = "Matmul") -> OpTrace:
    """a0 -> a1 -> ..., 10 bytes each; the last one is asked for."""
    names = [f"a{index}" for index in range(length + 1)]
    ops = tuple(Op(name, (before,), (after,)) for before, after in pairwise(names))
    return OpTrace(ops, dict.fromkeys(names, 10), dict.fromkeys(names, 5), frozenset(), (names[-1],))


def test_everything_that_waits_for_the_device_is_kept():
    assert chain(20).peak_bytes(AT_ONCE) == 190  # all but the result, in one group that is not computed yet
    assert chain(30).peak_bytes(ONE_BY_ONE) == MAX_GROUPS * 10


def test_a_chain_that_writes_over_its_input_takes_nothing():
    assert chain(20, "Add").peak_bytes(AT_ONCE) == 0


def test_views_take_nothing():
    assert chain(20, "Transpose").peak_bytes(AT_ONCE) == 0


def test_what_somebody_else_still_reads_is_not_written_over():
    sizes = dict.fromkeys("abcd", 10)
    ops = (Op("Matmul", (), ("a",)), Op("Matmul", ("a",), ("b",)), Op("Add", ("a", "b"), ("c",)))
    trace = OpTrace(ops, sizes, sizes, frozenset(), ("c",))
    assert trace.peak_bytes(AT_ONCE) == 10  # c takes over b, which nobody else has read, and a is kept


def test_a_state_that_is_replaced_is_there_twice_for_a_moment():
    sizes = {"old": 100, "new": 120}
    trace = OpTrace((Op("Concatenate", ("old",), ("new",)),), sizes, sizes, frozenset({"old"}), ("new",))
    assert trace.peak_bytes(AT_ONCE) == 100


def test_what_no_result_needs_is_not_computed():
    sizes = {"a": 10, "big": 1000}
    ops = (Op("Matmul", (), ("a",)), Op("Matmul", ("a",), ("big",)))
    assert OpTrace(ops, sizes, sizes, frozenset(), ("a",)).peak_bytes(AT_ONCE) == 0


def test_every_operation_comes_after_what_it_reads_however_wide_the_graph_is():
    wide: dict[int, list[int]] = {number: [] for number in range(50)}
    wide |= {50 + number: [number, (number + 1) % 50] for number in range(50)}
    order = evaluation_order(wide, list(range(50, 100)))
    assert sorted(order) == sorted(wide)
    assert all(order.index(read) < order.index(number) for number, reads in wide.items() for read in reads)


def fitted(peak_bytes: Callable[[int, int], int]) -> StepCost:
    chunks, ends = (16, 64), (64, 4096)
    return fit_step({point: peak_bytes(*point) for point in fit_points(chunks, ends)}, chunks, ends)


def test_the_plane_goes_through_its_corners():
    plane = StepCost(base_bytes=5, token_bytes=7, seen_bytes=3, pair_bytes=2)
    found = fitted(plane.bytes_at)
    assert replace(found, most_bytes=0, most_chunk=0, most_end=0) == plane


def test_the_plane_is_nowhere_below_a_corner():
    def bent(chunk: int, end: int) -> int:
        return max(10_000 - end, chunk * chunk, 3 * end)

    found = fitted(bent)
    assert min(found.base_bytes, found.token_bytes, found.seen_bytes, found.pair_bytes) >= 0
    assert all(found.bytes_at(chunk, end) >= bent(chunk, end) for chunk in (16, 64) for end in (64, 4096))


def test_between_its_corners_the_plane_is_never_over_the_highest():
    """As where MLX runs ahead: a short chunk grows with the position, a long one has reached the bound already."""

    def bounded(chunk: int, end: int) -> int:
        return min(900, chunk * (end // 64 + 20))

    found = fitted(bounded)
    assert all(found.bytes_at(64, end) == 900 for end in range(64, 4097, 64))
    assert all(bounded(chunk, end) <= found.bytes_at(chunk, end) <= 900 for chunk in (1, 16, 40) for end in (64, 4096))
    assert found.bytes_at(64, 8192) > 900
    assert found.bytes_at(128, 4096) > 900
