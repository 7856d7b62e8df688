"""The load's check of prompts in pieces: families whose state depends on the division of a prompt are found out."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest

from adapters.mlx.caches.kv_rows import lib
from adapters.mlx.caches.leaves import Caches
from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.network import ModelFacts
from adapters.mlx.loading.pieces import find_flaw, flaw_of
from adapters.mlx.loading.thresholds import small_thresholds
from adapters.mlx.memory import MeasuredFile
from adapters.mlx.runtime.arrays import trial
from adapters.mlx.speculation.drafting import DraftModelNetwork, nn
from application.services.lane import Lane
from domain.ids import ModelId
from tests.support.effort import some_of
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_models import build, names
from tests.support.patience import PATIENCE_S

_SIZE, _VOCAB = 32, 64
FAMILIES = {
    *("llama", "gpt2", "deepseek_v3", "deepseek_v32", "minimax_m3_vl", "gemma3_text", "gpt_oss", "gemma3n", "llama4"),
    *("mamba", "mamba2", "rwkv7", "lfm2", "qwen3_next", "falcon_h1", "baichuan_m1", "nemotron_h", "recurrent_gemma"),
    *("longcat_flash_ngram", "kimi_linear", "deepseek_v41"),
    *("deepseek_v4", "glm5_next", "hy_v4", "qwen4_exp", "k2_horizon"),
}
"""Of each kind of cache, and those with an indexer."""
RELEASED_TOPK = 2048


class Selecting(nn.Module):  # type: ignore[misc]
    """One layer that attends to the `index_topk` keys of the highest score, as the families with an indexer do."""

    def __init__(self, *, keeps_first_length: bool = False, topk: int = RELEASED_TOPK) -> None:
        nn.Module.__init__(self)
        mx.random.seed(1)
        self.index_topk = topk
        self.table = mx.random.normal((_VOCAB, _SIZE))
        self.head = mx.random.normal((_SIZE, _VOCAB))
        self._keeps_first_length = keeps_first_length
        self._places: dict[int, int] = {}

    @property
    def layers(self) -> list[Any]:
        return [self]

    def make_cache(self) -> Caches:
        return [lib.KVCache()]

    def __call__(self, tokens: mx.array, cache: Caches) -> mx.array:
        hidden = self.table[tokens][:, None]
        keys, values = cache[0].update_and_fetch(hidden, hidden)
        length, total = hidden.shape[2], keys.shape[2]
        scores = hidden @ keys.swapaxes(-1, -2)
        visible = mx.arange(total)[None] <= mx.arange(total - length, total)[:, None]
        if total > self.index_topk:
            place = total - self.index_topk
            if self._keeps_first_length:  # the defect: a compiled function keeps the place of its first length
                place = min(self._places.setdefault(self.index_topk, place), total - 1)
            least = mx.sort(mx.where(visible, scores, -mx.inf), axis=-1)[..., place : place + 1]
            visible = visible & (scores >= least)
        weights = mx.softmax(mx.where(visible, scores / _SIZE**0.5, -mx.inf), axis=-1)
        found: mx.array = (weights @ values)[:, 0] @ self.head
        return found


class Remembering(Selecting):
    """One that mixes in the token before, which it keeps where no capture finds it: a leaf of state is missing."""

    _before = 0

    def __call__(self, tokens: mx.array, cache: Caches) -> mx.array:
        shifted = mx.pad(tokens, [(0, 0), (1, 0)], constant_values=self._before if cache[0].offset else 0)[:, :-1]
        self._before = cast(int, tokens[0, -1].item())
        return super().__call__(tokens, cache) + self.table[shifted] @ self.head


class Forgetting(Selecting):
    """One that mixes in the token before as far as it is in the same pass, as a pooling without its last window."""

    def __call__(self, tokens: mx.array, cache: Caches) -> mx.array:
        shifted = mx.pad(tokens, [(0, 0), (1, 0)])[:, :-1]
        return super().__call__(tokens, cache) + self.table[shifted] @ self.head


class Picky(Selecting):
    """One whose kernel takes large selections only."""

    def __call__(self, tokens: mx.array, cache: Caches) -> mx.array:
        if self.index_topk < RELEASED_TOPK:
            raise ValueError("the kernel selects 2048 keys")
        return super().__call__(tokens, cache)


class Unable(Selecting):
    """One that computes first passes only."""

    def __call__(self, tokens: mx.array, cache: Caches) -> mx.array:
        if cache[0].offset:
            raise ValueError("the cache is not empty")
        return super().__call__(tokens, cache)


def flaw(network: Any) -> str:
    return finish_load(flaw_of(network, _VOCAB))


@pytest.mark.parametrize(
    ("network", "note"),
    [
        (Selecting(keeps_first_length=True), "computed in pieces differs from one computed in a single pass by"),
        (Forgetting(), "computed in pieces differs from one computed in a single pass by"),
        (Remembering(), "what follows a restored state differs from what was computed by"),
        (Unable(), "raises ValueError: the cache is not empty"),
    ],
    ids=["a selection of the first length", "a forgotten window", "a missing leaf", "raising"],
)
def test_a_state_that_depends_on_the_division_is_found_out(network: Any, note: str) -> None:
    assert note in flaw(network)


def test_a_model_with_a_flaw_says_so_and_is_still_served() -> None:
    """The defect is behind 2,048 keys: with those the passes of the check agree."""
    facts = ModelFacts({"model_type": "toy", "vocab_size": _VOCAB})
    model = finish_load(assemble(Selecting(keeps_first_length=True), ModelId("toy"), facts))
    assert "computed in pieces" in model.description.reuse_note
    assert finish_load(assemble(Selecting(), ModelId("toy"), facts)).description.reuse_note == ""


@pytest.mark.parametrize("topk", [24, RELEASED_TOPK])
def test_a_right_selection_is_no_flaw(topk: int) -> None:
    network = Selecting(topk=topk)
    assert flaw(network) == ""
    assert network.index_topk == topk, "the threshold is put back"


def test_a_kernel_that_takes_no_small_threshold_proves_nothing() -> None:
    with trial():
        assert flaw(Picky()) == ""


@pytest.mark.parametrize("name", some_of(names(), FAMILIES))
def test_no_family_raises_a_false_alarm(name: str) -> None:
    assert finish_load(flaw_of(build(name), 256)) == ""


@pytest.mark.parametrize(("trunk", "draft"), [("gemma3_text", "llama"), ("llama", "mamba2")])
def test_a_draft_model_raises_no_false_alarm(trunk: str, draft: str) -> None:
    assert finish_load(flaw_of(DraftModelNetwork(build(trunk), build(draft)), 256)) == ""


@pytest.mark.parametrize(
    ("name", "threshold", "value"),
    [
        ("gemma3_text", "sliding_window", 40),
        ("recurrent_gemma", "attention_window_size", 40),
        ("llama4", "attention_chunk_size", 40),
        ("deepseek_v32", "index_topk", 24),
        ("minimax_m3_vl", "index_topk_blocks", 6),
    ],
)
def test_thresholds_are_small_while_the_check_runs(name: str, threshold: str, value: int) -> None:
    network = build(name)

    def held() -> set[int]:
        modules: list[object] = network.modules()
        holders = [*modules, *(getattr(module, "args", module) for module in modules)]
        return {vars(holder)[threshold] for holder in holders if threshold in vars(holder)}

    assert held() == {value}
    with small_thresholds(network) as num_tokens:
        assert 0 < max(held()) <= min(16, num_tokens // 4)
    assert held() == {value}


def test_a_ratio_that_stays_makes_the_check_longer() -> None:
    network = build("deepseek_v41", compress_ratios=(0, 4, 128, 4))
    with small_thresholds(network) as num_tokens:
        assert num_tokens == 384


class TestRemembered:
    @pytest.fixture
    def lane(self) -> Iterator[Lane]:
        lane = Lane("weights", 1)
        yield lane
        lane.close()
        assert lane.join(PATIENCE_S)

    @pytest.mark.parametrize("make", [Forgetting, Selecting], ids=["a flaw", "none"])
    def test_by_the_models_content(self, make: Callable[[], Any], tmp_path: Path, lane: Lane) -> None:
        file, passes = MeasuredFile(tmp_path, lane), list[int]()

        class Counting(make):  # type: ignore[misc, valid-type]
            def __call__(self, tokens: mx.array, cache: Caches) -> mx.array:
                passes.append(tokens.shape[1])
                return super().__call__(tokens, cache)  # type: ignore[no-any-return]

        first = finish_load(find_flaw(Counting(), _VOCAB, file, "one"))
        num_passes = len(passes)
        lane.submit(lambda: None).result(PATIENCE_S)
        assert finish_load(find_flaw(Counting(), _VOCAB, file, "one")) == first
        assert len(passes) == num_passes
        finish_load(find_flaw(Counting(), _VOCAB, file, "another"))
        assert len(passes) == 2 * num_passes
        (key, *_) = json.loads((tmp_path / "measured.json").read_text())
        assert "mlx-lm" in key

    def test_not_for_a_model_that_cannot_be_recognised(self, tmp_path: Path, lane: Lane) -> None:
        file = MeasuredFile(tmp_path, lane)
        finish_load(find_flaw(Selecting(), _VOCAB, file, ""))
        lane.submit(lambda: None).result(PATIENCE_S)
        assert not list(tmp_path.iterdir())
