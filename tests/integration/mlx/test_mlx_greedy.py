"""Greedy decoding through groups equals a plain loop over `model(tokens, cache)`, token for token.

Alone, and with seven others that join and leave mid-flight; prompts of many lengths, windows crossed on the way.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.network import ModelFacts
from adapters.mlx.model import MlxModel
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from domain.ids import ModelId, SequenceId
from domain.models.model_card import DecodeMode
from tests.support.effort import some_of
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_models import build, config_of, names, tiny_model
from tests.support.stores.state_replay import (
    GRID,
    new_id,
    open_at,
    prefill,
    prompt_of,
    start_greedy,
)

FAMILIES = [
    *("llama", "gemma2", "gemma3_text", "gpt_oss", "llama4", "deepseek_v3", "qwen3_next"),
    *("mamba2", "falcon_h1", "nemotron_h", "rwkv7", "lfm2", "baichuan_m1", "minimax_m3_vl", "afm7"),
    *("recurrent_gemma", "gemma3n", "longcat_flash_ngram", "deepseek_v41"),
]
NUM_NEW = 32
LENGTHS = (17, 70, 33, 5, 1, 90, 44, 64)
"""Of the prompts; the first is the one that stays from beginning to end."""


def plain_loop(network: Any, prompt: tuple[int, ...]) -> Iterator[int]:
    """The reference: nothing but the model and its own caches, on the same grid. Computed as far as it is asked for."""
    caches = mlx_lm_module("models.cache").make_prompt_cache(network)
    for start in range(0, len(prompt) - 1, GRID):
        mx.eval(network(mx.array([prompt[start : min(start + GRID, len(prompt) - 1)]]), cache=caches))
    token = prompt[-1]
    while True:
        token = int(mx.argmax(network(mx.array([[token]]), cache=caches)[0, -1]).item())
        yield token


class Harness:
    """One network, as a LoadedModel and as the reference loop."""

    def __init__(self, name: str) -> None:
        self.network = build(name)
        self.model: MlxModel = finish_load(assemble(self.network, ModelId(name), ModelFacts(config_of(name))))
        self._references: dict[int, tuple[Iterator[int], list[int]]] = {}
        self._num_started = 0

    def expected(self, index: int, num_new: int) -> list[int]:
        if index not in self._references:
            self._references[index] = plain_loop(self.network, prompt_of(LENGTHS[index], index)), []
        reference, known = self._references[index]
        known.extend(islice(reference, max(0, num_new - len(known))))
        return known[:num_new]

    def start(self, index: int) -> SequenceId:
        """By turns with the end of the prompt in one piece, and with its last token alone."""
        prompt = prompt_of(LENGTHS[index], index)
        id = new_id()
        self.model.open(id)
        self._num_started += 1
        is_cut = self._num_started % 2 == 0
        prefill(self.model, id, prompt, len(prompt) - 1 if is_cut else (len(prompt) - 1) // GRID * GRID)
        start_greedy(self.model, id, prompt)
        return id

    def decode(self, ids: dict[int, SequenceId], into: dict[int, list[int]]) -> None:
        """One step for these, in no particular order; checks that positions tell the truth."""
        for index, result in zip(ids, self.model.decode(list(ids.values())), strict=True):
            assert result.error is None, result.error
            assert result.id == ids[index]
            into.setdefault(index, []).append(result.token_ids[0])
            ahead = self.model.position(result.id) - (LENGTHS[index] - 1 + len(into[index]))
            assert ahead in (0, 1)


OF_EACH_KIND = {"llama", "gemma3_text", "llama4", "qwen3_next", "mamba2", "falcon_h1", "baichuan_m1", "deepseek_v41"}
"""Full attention, windows, chunks, recurrent state beside attention, alone and in composites, a class of its own."""

installed = [name for name in FAMILIES if name in names()]


@pytest.fixture(scope="module", params=some_of(installed, OF_EACH_KIND))
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness(request.param)


@pytest.mark.exact
def test_alone_equals_the_plain_loop(harness: Harness) -> None:
    """Across the window's end; begun beyond it; begun with a single token."""
    for index, num_new in {0: NUM_NEW, 1: 12, 4: 12}.items():
        output: dict[int, list[int]] = {}
        id = harness.start(index)
        for _ in range(num_new):
            harness.decode({index: id}, output)
        harness.model.close([id])
        assert output[index] == harness.expected(index, num_new)


@pytest.mark.exact
def test_others_joining_and_leaving_change_nothing(harness: Harness) -> None:
    """Row 0 stays; 1 to 7 join one after the other, pause, are skipped for a step, and leave at different times."""
    running = {0: harness.start(0)}
    output: dict[int, list[int]] = {}
    for step in range(NUM_NEW):
        if step % 2 == 0 and 1 + step // 2 < len(LENGTHS):
            running[1 + step // 2] = harness.start(1 + step // 2)
        named = {index: id for index, id in running.items() if index == 0 or (step + index) % 5}
        order = sorted(named, key=lambda index: (index * 5 + step) % 8)
        harness.decode({index: named[index] for index in order}, output)
        leaving = [index for index in running if index and len(output.get(index, ())) >= 6 + 3 * (index % 4)]
        harness.model.close([running.pop(index) for index in leaving])
    harness.model.close(list(running.values()))
    assert not harness.model.open_ids()
    assert set(output) == set(range(len(LENGTHS)))
    for index, tokens in output.items():
        assert tokens == harness.expected(index, len(tokens)), f"sequence {index}"


KNOWN_SINGLE = {"afm7", "minimax_m3_vl", "gemma2", "gpt_bigcode", "llama4", "deepseek_v41"}


@pytest.mark.parametrize("name", sorted({"llama", "qwen3_next", "gemma3_text", *KNOWN_SINGLE} & set(names())))
def test_the_probe_finds_what_cannot_be_batched(name: str) -> None:
    description = Harness(name).model.description
    is_single = description.decode_mode is DecodeMode.SINGLE
    assert is_single == (name in KNOWN_SINGLE)
    assert bool(description.decode_note) == is_single


def test_the_state_of_rows_that_left_is_freed_on_request() -> None:
    """Without the request it is freed by the next step."""
    model, prompts = tiny_model("llama"), [prompt_of(700 + salt, salt) for salt in range(6)]
    ids = [open_at(model, prompt) for prompt in prompts]
    for id, prompt in zip(ids, prompts, strict=True):
        start_greedy(model, id, prompt)
    for _ in range(4):
        model.decode(ids)
    mx.synchronize()
    held = mx.get_active_memory()
    model.close(ids[:4])
    model.give_back()
    mx.synchronize()
    assert held - mx.get_active_memory() > 3 * model.description.memory.state_bytes(700)
    model.close(ids)
