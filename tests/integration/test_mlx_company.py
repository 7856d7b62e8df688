"""Random company changes no sequence's tokens: rows that join, are left out of steps, come back and end."""

import random

import mlx.core as mx
import pytest

from domain.ids import SequenceId
from tests.support.state_replay import continue_greedy, open_at, prompt_of, start_greedy, whole_state
from tests.support.tiny_models import tiny_model

NUM_SEQUENCES, NUM_STEPS = 9, 30


def decode_in_company(name: str, seed: int, num_sequences: int = NUM_SEQUENCES, num_steps: int = NUM_STEPS) -> None:
    """A sequence of its own kind (its prompt, when it comes and goes) for each, all drawn from the seed."""
    model, chance = tiny_model(name), random.Random(seed)
    prompts = [prompt_of(chance.choice([2, 7, chance.randint(30, 90)]), salt) for salt in range(num_sequences)]
    waiting, output = list(prompts), dict[SequenceId, list[int]]()
    running: dict[SequenceId, tuple[int, ...]] = {}
    ended: list[tuple[tuple[int, ...], list[int]]] = []
    for step in range(num_steps):
        for _ in range(chance.choice([0, 1, 3]) if step else 4):
            if waiting:
                prompt = waiting.pop()
                id = open_at(model, prompt)
                start_greedy(model, id, prompt)
                running[id], output[id] = prompt, []
        chosen = [id for id in running if chance.random() < 0.85]
        for result in model.decode(chosen):
            assert result.error is None, (name, result.error)
            output[result.id] += result.token_ids
        leaving = [id for id in running if chance.random() < 0.08]
        model.close(leaving[: chance.choice([1, 9])])
        if chance.random() < 0.2:
            model.give_back()
        ended += [(running.pop(id), output[id]) for id in tuple(running) if id not in model.open_ids()]
    ended += [(prompt, output[id]) for id, prompt in running.items()]
    model.close(list(running))
    assert sum(len(tokens) for _, tokens in ended) > num_steps
    for prompt, tokens in ended:
        if tokens:
            assert tokens == continue_greedy(model, open_at(model, prompt), prompt, len(tokens)), name


@pytest.mark.parametrize(
    "name", ["llama", "gemma3_text", "gpt_oss", "qwen3_next", "falcon_h1", "mamba2", "deepseek_v3", "deepseek_v32"]
)
def test_random_company_changes_no_tokens(name: str) -> None:
    decode_in_company(name, seed=1)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next"])
def test_what_others_hold_can_be_captured_while_rows_of_their_batch_end(name: str) -> None:
    """Ends of one step come one by one, and each captures before it goes; what is gone waits for the next step."""
    model, prompts = tiny_model(name), [prompt_of(40 + 9 * salt, salt) for salt in range(6)]
    ids = [open_at(model, prompt) for prompt in prompts]
    for id, prompt in zip(ids, prompts, strict=True):
        start_greedy(model, id, prompt)
    output: list[list[int]] = [[] for _ in ids]
    for _ in range(3):
        for tokens, result in zip(output, model.decode(ids), strict=True):
            tokens += result.token_ids
    held = [whole_state(model, id) for id in ids]
    for index in (1, 4, 0):
        model.close([ids[index]])
        left = [at for at, id in enumerate(ids) if id in model.open_ids()]
        assert [whole_state(model, ids[at]) for at in left] == [held[at] for at in left]
    for _ in range(3):
        for at, result in zip(left, model.decode([ids[at] for at in left]), strict=True):
            output[at] += result.token_ids
    model.close(ids)
    for at in left:
        assert output[at] == continue_greedy(model, open_at(model, prompts[at]), prompts[at], 6)


def test_what_those_who_left_held_is_given_back_when_it_is_asked_for() -> None:
    """Else it goes with the next step, and when memory is short there may be none."""
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
