"""Batches of rows: as wide as tokens and memory allow, and never empty."""

from hypothesis import given
from hypothesis import strategies as st

from domain.memory.shape import MemoryShape, StateCost, StepCost
from domain.scheduling.row_batches import RowBatch, pack_rows

SHAPE = MemoryShape(states=(StateCost(10, step=1),), step=StepCost(base_bytes=100, token_bytes=1), logit_bytes=3)


def test_the_longest_rows_come_first_and_are_padded_to_the_first_of_their_batch() -> None:
    rows = pack_rows([3, 9, 1, 8, 20], [0, 1, 2, 3, 4], 50, budget=20, shape=SHAPE)
    assert rows.batches == (RowBatch((4,), 20, 70), RowBatch((1, 3), 9, 88), RowBatch((0, 2), 3, 94))
    assert [rows.at(position).end for position in (50, 70, 88)] == [70, 88, rows.end]


def test_behind_a_long_prompt_a_batch_is_as_wide_as_the_memory_allows() -> None:
    """Each row repeats the state of the prompt."""
    lengths, one = [10] * 8, 10 * (1_000 + 10)
    wide = pack_rows(lengths, range(8), 1_000, budget=512, shape=SHAPE)
    assert [len(batch.rows) for batch in wide.batches] == [8]
    assert (wide.state_bytes, wide.pass_bytes) == (8 * one, 100 + 8 * (10 + 3))
    narrow = pack_rows(lengths, range(8), 1_000, budget=512, shape=SHAPE, room_bytes=3 * one + 139)
    assert [len(batch.rows) for batch in narrow.batches] == [3, 3, 2]
    assert (narrow.state_bytes, narrow.pass_bytes) == (3 * one, 139)
    least = pack_rows(lengths, range(8), 1_000, budget=512, shape=SHAPE, room_bytes=0)
    assert [len(batch.rows) for batch in least.batches] == [1] * 8


@given(
    st.lists(st.integers(1, 60), max_size=40),
    st.integers(0, 200),
    st.integers(1, 100),
    st.none() | st.integers(0, 50_000),
    st.data(),
)
def test_every_row_is_in_one_batch_within_its_bounds(
    lengths: list[int], start: int, budget: int, room_bytes: int | None, data: st.DataObject
) -> None:
    chosen = data.draw(st.sets(st.sampled_from(range(len(lengths))))) if lengths else set[int]()
    rows = pack_rows(lengths, chosen, start, budget=budget, shape=SHAPE, room_bytes=room_bytes)
    assert sorted(row for batch in rows.batches for row in batch.rows) == sorted(chosen)
    assert rows.end == start + sum(len(batch.rows) * batch.width for batch in rows.batches)
    for batch in rows.batches:
        size = len(batch.rows), start, batch.width
        assert batch.width == max(lengths[row] for row in batch.rows)
        needed = SHAPE.rows_bytes(*size) + SHAPE.pass_bytes(*size)
        assert needed <= rows.state_bytes + rows.pass_bytes
        if len(batch.rows) > 1:
            assert len(batch.rows) * batch.width <= budget
            assert room_bytes is None or needed <= room_bytes
