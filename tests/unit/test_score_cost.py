"""Which lengths have their attention scores computed, and what is charged for that."""

from dataclasses import replace

import pytest

from domain.memory.score_cost import ALIGNED, UNIT, ScoreCost, aligned
from domain.memory.shape import MemoryShape, StepCost

MOST = 512 << 20
COST = ScoreCost(pair_bytes=212, token_bytes=32_768, key_bytes=8192, num_layers=3, most_bytes=MOST)
"""By 32 heads on 8 of 128, two bytes a number."""


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "expected"),
    [
        (1, 5000, False),
        (2, 72_002, False),
        (2, 62_296, True),
        (2, 62_297, False),
        (16, 30_000, True),
        (17, 30_003, True),
        (64, 24_576, True),
        (64, 24_577, False),
        (428, 5000, True),
        (428, 9000, False),
        (255, 8000, True),
        (UNIT, 8000, False),
        (2 * UNIT, 2 * UNIT, False),
        (20, 500, True),
        (1000, 1000, True),
        (1400, 1400, True),
        (1600, 1600, False),
    ],
)
def test_the_lengths_alone_decide(num_queries: int, num_keys: int, expected: bool) -> None:
    assert COST.are_computed(num_queries, num_keys) is expected


def test_twice_the_heads_have_half_the_pairs_and_wider_keys_fewer() -> None:
    assert COST.are_computed(64, 24_000)
    assert not replace(COST, pair_bytes=424).are_computed(64, 24_000)
    assert not replace(COST, key_bytes=16_384).are_computed(64, 24_000)
    assert replace(COST, pair_bytes=424, key_bytes=16_384).are_computed(64, 12_000)


def test_keys_are_filled_up_and_never_by_a_whole_unit() -> None:
    for num_keys in range(1, 40):
        assert not aligned(num_keys) % ALIGNED
        assert 0 <= aligned(num_keys) - num_keys < ALIGNED


def test_every_chunk_that_has_scores_is_charged_for_them_and_longer_ones_never_less() -> None:
    for end in (2, 300, 5000, 72_000):
        charged = [COST.layer_bytes(chunk, end) for chunk in range(1, min(end, 3000) + 1)]
        assert charged == sorted(charged)
        assert max(charged) <= MOST
        for chunk, num_bytes in enumerate(charged, 1):
            assert num_bytes >= (212 * chunk + 8192) * end + 32_768 * chunk or not COST.are_computed(chunk, end)
        assert charged[-1] <= COST.layer_bytes(len(charged), end + 1)


def test_a_chunk_is_charged_for_the_scores_of_all_layers_that_have_any_at_once() -> None:
    shape = MemoryShape(step=StepCost(base_bytes=1000), scores=COST)
    assert shape.chunk_bytes(64, 72_000) == 1000 + 3 * MOST
    assert shape.decode_bytes(5, 72_000) == 1000, "one query has none"


def test_a_model_without_such_layers_has_none() -> None:
    assert not ScoreCost().are_computed(16, 5000)
    assert ScoreCost().layer_bytes(16, 5000) == 0
