"""Attention of the end of a prompt, filled up so that a plan is met again: what the exact one gives, of lengths that a
plan was made for before the prompt was there."""

from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest

from adapters.mlx import engine
from adapters.mlx.arrays import evaluate
from adapters.mlx.caches import cuda_attention
from adapters.mlx.caches.cuda_attention import replace_attention
from adapters.mlx.caches.layout import leaves, new_caches
from adapters.mlx.caches.library import lib
from adapters.mlx.caches.padded_queries import (
    AHEAD,
    MAX_PLANS,
    MAX_SPARE_PAIRS,
    UNIT,
    PaddedQueries,
    remember_fetches,
)
from adapters.mlx.caches.short_queries import noting
from adapters.mlx.engine import MlxEngine
from adapters.mlx.model import MlxModel
from application.services.token_side.model_loads import whole
from application.settings import CacheSettings, Settings
from domain.ids import ModelId, SequenceId
from domain.model_card import LoadOptions, ModelSource
from interfaces.composition.backends import mlx_backend
from tests.integration.test_mlx_short_queries import apart, exact, random
from tests.support import tiny_models
from tests.support.replaced_attention import attention_given_back
from tests.support.tiny_models import write_folder

GROUPS, DIM, HEADS, SCALE = 2, 16, 4, 0.3
SLOTS = 2048

Asked = tuple[mx.array, mx.array, mx.array, Any]


class Attend:
    """MLX's own, and how many queries and keys it was given."""

    def __init__(self) -> None:
        self.lengths: list[tuple[int, int]] = []
        self.fails, self.computes = False, True

    def __call__(self, queries: mx.array, keys: mx.array, values: mx.array, **how: Any) -> mx.array:
        self.lengths.append((queries.shape[2], keys.shape[2]))
        if self.fails:
            raise RuntimeError("no plan")
        if not self.computes:
            return queries
        return cast(mx.array, mx.fast.scaled_dot_product_attention(queries, keys, values, **how))


@pytest.fixture
def attend() -> Attend:
    return Attend()


@pytest.fixture
def padded(attend: Attend) -> PaddedQueries:
    return PaddedQueries(attend)


def asked(queries: int, keys: int, slots: int = SLOTS, dtype: mx.Dtype = mx.bfloat16) -> Asked:
    """In the free slots are numbers that would show."""
    cache = lib.KVCache()
    for seed, name in enumerate(("keys", "values")):
        tokens = random(seed, 1, GROUPS, keys, DIM, dtype=dtype)
        setattr(cache, name, mx.concatenate([tokens, mx.full((1, GROUPS, slots - keys, DIM), 7, dtype)], axis=2))
    cache.offset = keys - 1
    turned = mx.swapaxes(random(2, 1, queries, HEADS, DIM, dtype=dtype), 1, 2)
    new = [random(seed, 1, GROUPS, 1, DIM, dtype=dtype) for seed in (3, 4)]
    return turned, *cache.update_and_fetch(*new), cache


@pytest.fixture(autouse=True)
def fetches() -> Generator[None]:
    """Plain caches are as ever after each test."""
    with attention_given_back():
        remember_fetches()
        remember_fetches()
        yield


def found_by(padded: PaddedQueries, given: Asked) -> mx.array | None:
    return padded(*given, SCALE, "causal")


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (63, 63), (65, 300), (100, 1000), (500, 1400)])
def test_it_is_the_exact_attention_to_rounding(
    padded: PaddedQueries, attend: Attend, queries: int, keys: int, dtype: mx.Dtype
) -> None:
    given = asked(queries, keys, dtype=dtype)
    found = found_by(padded, given)
    assert found is not None
    assert found.dtype == dtype
    assert apart(found, exact(*given[:3], SCALE, is_causal=True)) < 0.02
    size = -(-queries // UNIT) * UNIT
    assert attend.lengths == [(size, keys - queries + size)]


def test_a_plan_that_was_made_before_is_taken(padded: PaddedQueries, attend: Attend) -> None:
    found_by(padded, asked(20, 700))  # which tells of such layers
    first = asked(1, 1000)
    assert padded.plan(first[3], 1000)
    assert not padded.plan(first[3], 1000), "it is there"
    planned = (AHEAD, 1000 + AHEAD)
    assert attend.lengths[1:] == [planned]
    for queries in (9, 130, AHEAD - 1):
        given = asked(queries, 1000 + queries)
        found = found_by(padded, given)
        assert found is not None
        assert attend.lengths[-1] == planned
        assert apart(found, exact(*given[:3], SCALE, is_causal=True)) < 0.02
    for other in (asked(130, 1100), asked(130, 1130, slots=SLOTS + 256)):  # from elsewhere; of another buffer
        found_by(padded, other)
        assert attend.lengths[-1] != planned


def test_where_bits_are_promised_all_is_as_ever(padded: PaddedQueries, attend: Attend) -> None:
    padded.is_exact = True
    assert found_by(padded, asked(250, 850)) is None
    assert not padded.plan(asked(1, 1000)[3], 1000)
    assert not attend.lengths


def test_of_several_plans_the_smallest_is_taken(padded: PaddedQueries, attend: Attend) -> None:
    found_by(padded, asked(250, 850))
    padded.plan(asked(1, 600)[3], 600)
    found_by(padded, asked(200, 800))
    assert attend.lengths == [(256, 856), (AHEAD, 600 + AHEAD), (256, 856)]
    found_by(padded, asked(100, 700))
    assert attend.lengths[-1] == (256, 856)


def test_padding_takes_no_longer_than_a_plan(padded: PaddedQueries, attend: Attend) -> None:
    before = MAX_SPARE_PAIRS // (AHEAD - UNIT)
    found_by(padded, asked(20, 700))
    attend.computes = False
    padded.plan(asked(1, before, before + AHEAD)[3], before)
    attend.lengths.clear()
    found_by(padded, asked(10, before + 10, before + AHEAD))
    assert attend.lengths == [(UNIT, before + UNIT)]


def test_what_it_does_not_know_is_left_alone(padded: PaddedQueries, attend: Attend) -> None:
    queries, keys, values, cache = asked(70, 300)
    mask = mx.ones((70, 300), mx.bool_)
    wide = [one.astype(mx.float32) for one in (queries, keys, values)]
    both = [mx.concatenate([one, one]) for one in (queries, keys, values)]
    assert padded(queries, keys, values, cache, SCALE, mask) is None
    assert padded(queries, keys, values, cache, SCALE, None) is None
    assert padded(wide[0], wide[1], wide[2], cache, SCALE, "causal") is None
    assert padded(both[0], both[1], both[2], cache, SCALE, "causal") is None
    assert padded(queries, keys[:, :, 1:], values[:, :, 1:], cache, SCALE, "causal") is None, "not what the cache has"
    assert padded(queries, keys * 1, values, cache, SCALE, "causal") is None, "what a family made of it"
    assert padded(queries, keys, values * 1, cache, SCALE, "causal") is None
    for count in (1, 8, UNIT, 256):
        assert found_by(padded, asked(count, 300)) is None
    assert found_by(padded, asked(70, 300, slots=357)) is None, "there is no room"
    assert found_by(padded, asked(70, 300, slots=358)) is not None
    with noting():
        assert found_by(padded, asked(70, 300)) is None, "nothing is computed, so there is no plan"
    assert len(attend.lengths) == 1


def test_of_a_buffer_with_less_room_there_is_a_plan_for_fewer(padded: PaddedQueries, attend: Attend) -> None:
    found_by(padded, asked(20, 700))
    assert padded.plan(asked(1, 1000, slots=1280)[3], 1000)
    assert attend.lengths[-1] == (256, 1256)
    found_by(padded, asked(130, 1130, slots=1280))
    assert attend.lengths[-1] == (256, 1256)


def test_nothing_is_planned_for_what_is_not_known(padded: PaddedQueries, attend: Attend) -> None:
    cache = asked(1, 1000)[3]
    assert not padded.plan(cache, 1000), "nobody has asked"
    found_by(padded, asked(20, 700))
    attend.lengths.clear()
    assert not padded.plan(cache, SLOTS - UNIT + 1), "its buffer will be another"
    assert not padded.plan(lib.RotatingKVCache(100), 1000)
    assert not padded.plan(lib.KVCache(), 0)
    assert not padded.plan(asked(1, 1000, dtype=mx.float16)[3], 1000), "other layers"
    assert not attend.lengths


def test_what_cannot_be_planned_is_tried_once_and_not_taken(padded: PaddedQueries, attend: Attend) -> None:
    found_by(padded, asked(20, 700))
    attend.fails = True
    with pytest.raises(RuntimeError):
        padded.plan(asked(1, 1000)[3], 1000)
    attend.fails = False
    assert not padded.plan(asked(1, 1000)[3], 1000)
    found_by(padded, asked(100, 1100))
    assert attend.lengths[-1] == (128, 1128)
    assert padded.plan(asked(1, 1100)[3], 1100), "another is tried"


def test_of_plans_only_the_last_are_remembered(padded: PaddedQueries, attend: Attend) -> None:
    attend.computes = False
    found_by(padded, asked(20, 700))
    cache = asked(1, 1000)[3]
    for position in range(MAX_PLANS):
        assert padded.plan(cache, 100 + position)
    assert not padded.plan(cache, 101)
    assert padded.plan(cache, 100 + MAX_PLANS)
    assert padded.plan(cache, 100), "long not met, MLX has let it go"


def test_a_plan_that_is_met_stays(padded: PaddedQueries, attend: Attend) -> None:
    attend.computes = False
    found_by(padded, asked(20, 700))
    cache = asked(1, 1000)[3]
    padded.plan(cache, 1000)
    for position in range(2 * MAX_PLANS):
        padded.plan(cache, 100 + position)
        found_by(padded, asked(100, 1100))
    assert attend.lengths[-1] == (AHEAD, 1000 + AHEAD)


# ---- in a model ----------------------------------------------------------------------------------------------------


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Generator[PaddedQueries]:
    """As on CUDA, without products in place of the fused attention."""
    monkeypatch.setattr(cuda_attention, "most_ahead_bytes", lambda: 0)
    with attention_given_back():
        yield replace_attention().padded


def turn(model: MlxModel, id: int, tokens: list[int], left: int | None = None, position: int = 0) -> list[float]:
    """Computes `tokens` from `position` of a left state on, and leaves its own; what it finds of all but the first."""
    model.open(SequenceId(id))
    if left is not None:
        model.take_over(SequenceId(id), SequenceId(left), position)
    scores = model.prefill(SequenceId(id), tokens, num_prompt_logprobs=0)
    assert model.leave(SequenceId(id)) is not None
    return [score.logprob for score in scores if score is not None]


def tokens_of(count: int) -> list[int]:
    return [(17 * index) % 90 for index in range(count)]


def test_the_next_turn_takes_the_plan_that_was_made_while_nothing_ran(
    replaced: PaddedQueries, monkeypatch: pytest.MonkeyPatch, attend: Attend
) -> None:
    monkeypatch.setattr(replaced, "_attend", attend)
    prompt = tokens_of(1000)
    alone = turn(tiny_models.tiny_model("llama", mx.bfloat16), 1, prompt[:700])[600:]
    model = tiny_models.tiny_model("llama", mx.bfloat16)
    turn(model, 1, prompt[:600])
    attend.lengths.clear()
    assert model.plan_ahead(replaced)
    assert attend.lengths == [(128, 728)], "of 768 slots; all layers are alike"
    assert not model.plan_ahead(replaced)
    found = turn(model, 2, prompt[600:700], left=1, position=600)
    assert set(attend.lengths) == {(128, 728)}
    assert max(abs(one - other) for one, other in zip(found, alone, strict=True)) < 0.1
    turn(model, 3, prompt[700:], left=2, position=700)
    assert attend.lengths[-1] == (320, 1020), "a buffer of its own"


def logits_of(network: Any) -> list[mx.array]:
    """Of the chunks of a prompt."""
    caches, found = new_caches(network), list[mx.array]()
    for number, length in enumerate((70, 37, 64, 61)):
        tokens = mx.array([[(17 * index + 5 * number) % 90 for index in range(length)]])
        found.append(network(tokens, cache=caches).astype(mx.float32))
        evaluate(found)
    return found


@pytest.mark.parametrize("name", ["llama", "gemma3n", "afm7", "olmo3", "qwen3_5", "minicpm3", "gptj"])
def test_prefill_is_that_of_mlx_lm_to_rounding(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, attend: Attend
) -> None:
    """Full attention, keys that layers share, windows and recurrent layers beside it, latents."""
    network = tiny_models.build(name, mx.bfloat16)
    before = logits_of(network)
    monkeypatch.setattr(request.getfixturevalue("replaced"), "_attend", attend)
    after = logits_of(network)
    assert {queries for queries, _ in attend.lengths} == {64, 128}
    assert all(apart(found, expected) < 0.1 for found, expected in zip(after, before, strict=True))


@pytest.mark.parametrize("is_exact", [True, False])
def test_an_engine_on_cuda_prepares_for_its_models_unless_bits_are_promised(
    is_exact: bool, replaced: PaddedQueries, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine, "has_cuda", lambda: True)
    monkeypatch.setattr(engine, "_step_threads", lambda: None)
    settings = Settings(cache=CacheSettings(exact=is_exact))
    made = mlx_backend(settings).engine_factory()
    folder, id = write_folder("llama", tmp_path / "llama", mx.bfloat16), ModelId("llama")
    model = whole(made.load(ModelSource(id, str(folder)), LoadOptions(dtype="bfloat16")))
    assert not made.prepare_ahead(), "nobody has been here"
    turn(cast(MlxModel, model), 1, tokens_of(600))
    assert made.prepare_ahead() is not is_exact
    assert not made.prepare_ahead()
    made.unload(model)


def test_elsewhere_an_engine_has_nothing_to_prepare() -> None:
    assert not MlxEngine().prepare_ahead()


def test_what_a_state_was_cut_back_from_is_not_seen(
    replaced: PaddedQueries, monkeypatch: pytest.MonkeyPatch, attend: Attend
) -> None:
    """Not even where a model had computed what is no number. Once other tokens are in its place, all is as ever."""
    monkeypatch.setattr(replaced, "_attend", attend)
    prompt = tokens_of(700)
    alone = turn(tiny_models.tiny_model("llama", mx.bfloat16), 1, prompt[:360])[300:]
    model = tiny_models.tiny_model("llama", mx.bfloat16)
    turn(model, 1, [*prompt[:300], *tokens_of(90)])
    for cache in leaves(model._left._rows[SequenceId(1)].caches):
        cache.keys[..., 300:390, :] = mx.nan
        cache.values[..., 300:390, :] = mx.inf
    attend.lengths.clear()
    found = turn(model, 2, prompt[300:360], left=1, position=300)
    assert len(found) == 59
    assert max(abs(one - other) for one, other in zip(found, alone, strict=True)) < 0.1
    assert not model.plan_ahead(replaced), "it would not be used"
    assert not attend.lengths
    turn(model, 3, prompt[360:390], left=2, position=360)
    assert set(attend.lengths) == {(64, 424)}, "30 tokens are behind it, and the last of what was"
    model.open(SequenceId(4))
    model.take_over(SequenceId(4), SequenceId(3), 370)
    model.fork(SequenceId(4), [SequenceId(5)])
    attend.lengths.clear()
    model.prefill(SequenceId(5), prompt[370:385])
    assert not attend.lengths, "what it was forked from was cut back"
