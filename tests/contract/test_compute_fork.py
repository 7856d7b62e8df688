"""Forking a prefilling sequence: what goes on from its state computes what a sequence of its own would."""

import pytest

from application.ports.compute import DecodeStart, LoadedModel
from domain.ids import SequenceId
from tests.support.contract_models import GREEDY, OTHER, PROMPT, step
from tests.support.state_replay import new_id

HALF = 70


def skip_unless_forkable(model: LoadedModel) -> None:
    if model.description.layout.unsupported:
        pytest.skip("this model's state cannot be captured, nor forked")


def finish(model: LoadedModel, id: SequenceId, prompt: tuple[int, ...], at: int) -> None:
    model.prefill(id, prompt[at:-1])
    model.start_decode(id, prompt[-1:], DecodeStart(prompt, GREEDY, 1))


def alone(model: LoadedModel, prompt: tuple[int, ...]) -> list[int]:
    id = new_id()
    model.open(id)
    model.prefill(id, prompt[:HALF])
    finish(model, id, prompt, HALF)
    output = [step(model, id).token_id for _ in range(12)]
    model.close([id])
    return output


def test_forks_and_their_origin_go_their_own_ways(model: LoadedModel) -> None:
    skip_unless_forkable(model)
    prompts = [PROMPT, PROMPT[:HALF] + OTHER[:40], PROMPT[:HALF] + OTHER[3:20]]
    expected = [alone(model, prompt) for prompt in prompts]
    ids = [new_id() for _ in prompts]
    model.open(ids[0])
    model.prefill(ids[0], PROMPT[:HALF])
    model.fork(ids[0], ids[1:])
    assert [model.position(id) for id in ids] == [HALF] * 3
    for id, prompt in reversed(list(zip(ids, prompts, strict=True))):
        finish(model, id, prompt, HALF)
    outputs: list[list[int]] = [[] for _ in ids]
    for _ in range(12):
        for output, result in zip(outputs, model.decode(ids), strict=True):
            assert result.error is None
            output.append(result.token_id)
    assert outputs == expected
    model.close(ids)
    assert not model.open_ids()


def test_a_fork_outlives_its_origin(model: LoadedModel) -> None:
    skip_unless_forkable(model)
    origin, fork = new_id(), new_id()
    model.open(origin)
    model.prefill(origin, PROMPT[:HALF])
    model.fork(origin, [fork])
    finish(model, origin, PROMPT[:HALF] + OTHER, HALF)
    step(model, origin)
    model.close([origin])
    finish(model, fork, PROMPT, HALF)
    assert [step(model, fork).token_id for _ in range(12)] == alone(model, PROMPT)
    model.close([fork])


def test_misuse_is_loud(model: LoadedModel) -> None:
    skip_unless_forkable(model)
    origin, other = new_id(), new_id()
    model.open(origin)
    model.open(other)
    with pytest.raises(RuntimeError):
        model.fork(origin, [other])
    model.start_decode(origin, PROMPT[:9], DecodeStart(PROMPT[:9], GREEDY, 1))
    with pytest.raises(RuntimeError):
        model.fork(origin, [new_id()])
    model.close([origin, other])
