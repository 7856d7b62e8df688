"""Which lengths have their attention scores computed, and what is charged for that."""

import pytest

from domain.memory.score_cost import UNIT, ScoreCost, has_scores
from domain.memory.shape import AheadBound, MemoryShape, StepCost

MOST = 64 * 64 * 72_064
"""Of 64 queries on 72,000 keys, by 32 heads of two bytes."""


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "expected"),
    [
        (1, 5000, False),
        (2, 72_002, True),
        (16, 72_016, True),
        (64, 72_000, True),
        (65, 72_000, False),
        (428, 72_428, False),
        (428, 5000, True),
        (255, 8000, True),
        (UNIT, 8000, False),
        (2 * UNIT, 2 * UNIT, False),
        (1000, 1000, True),
        (2047, 2047, True),
        (2147, 2147, True),
        (2148, 2148, False),
    ],
)
def test_the_lengths_alone_decide(num_queries: int, num_keys: int, expected: bool) -> None:
    assert has_scores(num_queries, num_keys, 64, MOST) is expected


def test_twice_the_heads_have_half_the_pairs() -> None:
    assert has_scores(64, 72_000, 64, MOST)
    assert not has_scores(64, 72_000, 128, MOST)
    assert has_scores(32, 72_000, 128, MOST)


def test_every_chunk_that_has_scores_is_charged_for_them_and_longer_ones_never_less() -> None:
    cost = ScoreCost(pair_bytes=64, num_layers=3, most_bytes=MOST)
    for end in (2, 300, 5000, 72_000):
        charged = [cost.layer_bytes(chunk, end) for chunk in range(1, min(end, 3000) + 1)]
        assert charged == sorted(charged)
        assert max(charged) <= MOST
        for chunk, num_bytes in enumerate(charged, 1):
            assert num_bytes >= 64 * chunk * end or not cost.are_computed(chunk, end)
        assert charged[-1] <= cost.layer_bytes(len(charged), end + 1)


def test_what_prefill_is_held_to_has_the_scores_of_one_layer_beside_it_and_what_is_not_of_all() -> None:
    scores = ScoreCost(pair_bytes=64, num_layers=3, most_bytes=MOST)
    shape = MemoryShape(step=StepCost(base_bytes=1000), scores=scores)
    assert shape.chunk_bytes(64, 72_000) == 1000 + 3 * MOST
    assert shape.decode_bytes(5, 72_000) == 1000, "one query has none"
    held = MemoryShape(step=shape.step, ahead=AheadBound(StepCost(base_bytes=10), 500), scores=scores)
    assert held.chunk_bytes(64, 72_000) == 10 + MOST + 500
    assert held.held_ahead_bytes(64, 72_000) == 500


def test_a_model_without_such_layers_has_none() -> None:
    assert not ScoreCost().are_computed(16, 5000)
    assert ScoreCost().layer_bytes(16, 5000) == 0
