"""The sums of domain/memory/shape."""

from domain.memory.shape import MemoryShape, StateCost


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


def test_the_peak_is_what_a_chunk_sees():
    shape = MemoryShape(score_bytes=2, activation_bytes=100, logit_bytes=1000, grown_bytes=3)
    assert shape.peak_bytes(0, 100) == 0
    assert shape.peak_bytes(10, 100) == 10 * (100 + 2 * 100) + 3 * 100 + 10 * 1000
    assert shape.peak_bytes(100, 100, num_logits=1) == 100 * (100 + 2 * 100) + 3 * 100 + 1000


def test_a_model_nobody_estimated_costs_nothing():
    assert MemoryShape().state_bytes(1000) == MemoryShape().peak_bytes(100, 1000) == 0
