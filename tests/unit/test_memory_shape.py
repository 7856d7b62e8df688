"""The sums of domain/memory/shape."""

import pytest

from domain.memory.buffer_slots import SPARE_SHARE, buffer_slots
from domain.memory.shape import AheadBound, MemoryShape, StateCost, StepCost


def test_a_buffer_is_charged_as_it_is_allocated():
    cost = StateCost(10)
    assert [cost.held_bytes(count) for count in (0, 1, 256, 257)] == [0, 2560, 2560, 5120]


def test_a_window_holds_the_chunk_beside_it():
    cost = StateCost(1, window=512)
    assert cost.held_bytes(300) == 512
    assert cost.held_bytes(10_000) == 512
    assert cost.held_bytes(10_000, chunk=256) == 768


def test_a_recurrent_state_is_the_same_at_every_length():
    cost = StateCost(0, fixed_bytes=77, step=1)
    assert cost.held_bytes(0) == 0
    assert cost.held_bytes(1) == cost.held_bytes(10_000) == 77


def test_states_add_up():
    shape = MemoryShape(states=(StateCost(1), StateCost(2, window=256), StateCost(0, fixed_bytes=5)))
    assert shape.state_bytes(1024) == 1024 + 512 + 5


def test_the_peak_is_a_plane_over_chunk_and_end():
    shape = MemoryShape(step=StepCost(base_bytes=7, token_bytes=100, seen_bytes=3, pair_bytes=2))
    assert shape.peak_bytes(0, 100) == 0
    assert shape.peak_bytes(10, 100) == 7 + 10 * 100 + 3 * 100 + 10 * 2 * 100


def test_logits_are_those_of_the_chunk_that_ends_a_prompt():
    shape = MemoryShape(step=StepCost(token_bytes=10), logit_bytes=1000, sample_bytes=5)
    assert shape.peak_bytes(512, 512, num_logits=32) == 32 * (10 + 1000) + 5
    assert shape.peak_bytes(512, 512, num_logits=512) == 512 * (10 + 1000) + 5
    assert MemoryShape(step=StepCost(token_bytes=10), logit_bytes=1).peak_bytes(512, 512, num_logits=1) == 5120


def test_every_row_of_a_decode_step_chooses_a_token():
    step = StepCost(base_bytes=9, token_bytes=1, seen_bytes=2, pair_bytes=3)
    shape = MemoryShape(step=step, logit_bytes=4, sample_bytes=5)
    assert shape.decode_bytes(3, 100) == 9 + 3 * (1 + 200 + 300 + 4 + 5)


def test_a_model_nobody_estimated_costs_nothing():
    assert MemoryShape().state_bytes(1000) == MemoryShape().peak_bytes(100, 1000) == 0


def test_a_chunk_needs_its_operations_and_the_bound_or_less_where_less_is_run_ahead():
    shape = MemoryShape(step=StepCost(token_bytes=100), ahead=AheadBound(StepCost(token_bytes=2), 500))
    assert (shape.chunk_bytes(5, 5), shape.held_ahead_bytes(5, 5)) == (500, 0)
    assert (shape.chunk_bytes(10, 10), shape.held_ahead_bytes(10, 10)) == (520, 500)
    assert shape.peak_bytes(10, 10) == 520
    assert shape.decode_bytes(3, 100) == 300, "nothing holds it"


MIB = 1 << 20


@pytest.mark.parametrize(
    ("end", "all_measured", "known", "natural", "needed"),
    [(8192, 10874, 8824, 10886, 120), (32768, 14366, 12280, 11265, 120), (65536, 19046, 16888, 11770, 154)],
)
def test_the_estimate_of_a_held_chunk_is_what_was_measured(
    end: int, all_measured: int, known: int, natural: int, needed: int
):
    """MiB on an H100, Qwen3-4B's shape, chunks of 2,048 tokens, held to 2 GiB: weights and states, and beyond them what
    was traced of an eager MLX, and of one operation after another."""
    step, alone = StepCost(base_bytes=natural * MIB), StepCost(base_bytes=needed * MIB)
    shape = MemoryShape(step=step, ahead=AheadBound(alone, 2 << 30))
    estimate = known + shape.peak_bytes(2048, end) / MIB
    assert 1 <= estimate / all_measured < 1.02


def test_a_long_buffer_grows_by_a_share_of_its_length_and_is_charged_so():
    assert [buffer_slots(count, 256) for count in (0, 257, 8_192, 8_193)] == [0, 512, 8_192, 8_704]
    assert buffer_slots(77_965, 256) == buffer_slots(81_920, 256) == 81_920
    assert StateCost(10).held_bytes(77_965) == 819_200
    assert buffer_slots(77_965, 1) == 77_965


def test_slots_follow_from_tokens_whatever_the_way_to_them_was():
    """Each length finds the buffer that any shorter one that has room for it would have left."""
    lengths = [*range(1, 600), *range(8_000, 9_000), *range(131_000, 140_000, 7)]
    for count in lengths:
        slots = buffer_slots(count, 256)
        assert count <= slots < count + max(256, count // SPARE_SHARE + 1)
        assert buffer_slots(slots, 256) == buffer_slots((count + slots) // 2, 256) == slots
