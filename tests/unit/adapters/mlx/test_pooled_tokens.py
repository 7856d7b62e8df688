"""Pooled tokens: whatever the passes, they are those of one pass, and so is what they leave open."""

from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx.caches.pooled import FIELDS, PooledTokens
from adapters.mlx.vlm.mends import _selected
from tests.support.mlx.pooling import pooled

NUM_TOKENS = 42
DIVISIONS = [(NUM_TOKENS,), (1,) * NUM_TOKENS, (3, 5, 4, 8, 1, 21), (4, 4, 34), (16, 16, 10), (2, 1, 1, 38)]


def tokens_at(start: int, end: int) -> mx.array:
    return mx.sin(mx.arange(3 * start, 3 * end, dtype=mx.float32)).reshape(1, -1, 3)


def fed(cache: PooledTokens, division: tuple[int, ...]) -> mx.array:
    found, start = mx.zeros((1, 0, 3)), 0
    for count in division:
        found = pooled(cache, tokens_at(start, start + count), start)
        start += count
    return found


@pytest.mark.parametrize("division", DIVISIONS[1:], ids=str)
@pytest.mark.parametrize(("ratio", "overlaps"), [(4, True), (4, False), (16, False)])
def test_passes_do_not_show(ratio: int, overlaps: bool, division: tuple[int, ...]) -> None:
    whole, divided = PooledTokens(ratio, overlaps=overlaps), PooledTokens(ratio, overlaps=overlaps)
    expected = fed(whole, DIVISIONS[0])
    assert mx.allclose(fed(divided, division), expected, rtol=1e-6).item()
    assert expected.shape == (1, NUM_TOKENS // ratio, 3)
    assert divided.offset == NUM_TOKENS // ratio
    for name in FIELDS:
        mine, theirs = getattr(divided, name), getattr(whole, name)
        assert (mine is None) == (theirs is None) == (not overlaps and name.startswith("last"))
        assert mine is None or mx.allclose(mine, theirs, rtol=1e-6).item()


def test_a_query_sees_the_groups_that_ended() -> None:
    cache = PooledTokens(4)
    assert cache.make_mask(3, 0) is None
    fed(cache, (9,))
    assert cache.make_mask(1, 8) is None, "the last one sees all"
    mask: Any = cache.make_mask(6, 3)
    assert mask.tolist() == [[True, False]] * 4 + [[True, True]] * 2


@pytest.mark.parametrize("most", [2**25, 200], ids=["at once", "a few queries at a time"])
def test_the_best_keys_are_selected_among_those_that_a_query_sees(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.mlx.vlm.mends._MOST_SCORES", most)
    mx.random.seed(1)
    q, keys, weights = mx.random.normal((1, 2, 9, 8)), mx.random.normal((1, 30, 8)), mx.random.normal((1, 9, 2))
    seen = mx.arange(20, 29)[None]
    found = _selected(q, keys, weights, 0.5, 6, 4, 2, seen)
    for place in range(9):
        scores = (mx.maximum(q[0, :, place] @ keys[0].T, 0) * 0.5 * weights[0, place][:, None]).sum(axis=0)
        best = mx.argsort(-scores[: 20 + place])[:6]
        assert sorted(found[0, place].tolist()) == sorted(best.tolist())
