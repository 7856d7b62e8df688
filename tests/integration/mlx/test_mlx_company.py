"""Rows that end in company: what the others hold, and what is given back."""

import mlx.core as mx
import pytest

from tests.support.mlx.tiny_models import tiny_model
from tests.support.stores.state_replay import continue_greedy, open_at, prompt_of, start_greedy, whole_state


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
