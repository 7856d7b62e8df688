"""The compute port's contract on forking: every fork goes on as if it alone had computed the prompt."""

import pytest

from application.ports.compute import DecodeStart, LoadedModel
from domain.ids import SequenceId
from domain.request.sampling import SamplingParams
from tests.support.mlx.contract_models import OTHER, PROMPT, start, step
from tests.support.stores.state_replay import (
    BLOCK,
    continue_greedy,
    new_id,
    open_at,
    prefill,
    prompt_of,
    start_greedy,
    whole_state,
)

ENDINGS = [prompt_of(length, length, vocab_size=250) for length in (3, 41, 70)]


@pytest.mark.parametrize("position", [0, 1, BLOCK, 2 * BLOCK + 9, 4 * BLOCK])
def test_forks_end_differently_and_each_as_if_alone(model: LoadedModel, position: int) -> None:
    prompts = [PROMPT[:position] + ending for ending in ENDINGS]
    expected = [continue_greedy(model, computed(model, prompt, position), prompt, 5) for prompt in prompts]
    ids = [new_id() for _ in prompts]
    model.open(ids[0])
    prefill(model, ids[0], PROMPT, position)
    model.fork(ids[0], ids[1:])
    assert [model.position(id) for id in ids] == [position] * len(ids)
    for id, prompt in zip(ids, prompts, strict=True):
        prefill(model, id, prompt, len(prompt) - 1)
        start_greedy(model, id, prompt)
    outputs: list[list[int]] = [[] for _ in ids]
    for _ in range(5):
        for output, result in zip(outputs, model.decode(ids), strict=True):
            assert result.error is None
            output += result.token_ids
    model.close(ids)
    assert outputs == expected


def computed(model: LoadedModel, prompt: tuple[int, ...], position: int) -> SequenceId:
    """In the chunks of a fork at `position`, but for the last token."""
    id = new_id()
    model.open(id)
    prefill(model, id, prompt, position)
    prefill(model, id, prompt, len(prompt) - 1)
    return id


def test_what_one_computes_changes_no_other(model: LoadedModel) -> None:
    if not model.description.layout.is_reusable:
        pytest.skip("this model's state cannot be captured")
    source, first, second = open_at(model, PROMPT), new_id(), new_id()
    before = whole_state(model, source)
    model.fork(source, [first, second])
    for id, other in ((first, second), (source, second)):
        for _ in range(3):
            model.prefill(id, OTHER[:1])
        model.prefill(id, OTHER)
        assert whole_state(model, other) == before
    assert whole_state(model, first) == whole_state(model, source) != before
    model.close([source, first, second])


def test_a_fork_outlives_its_source_and_the_source_its_fork(model: LoadedModel) -> None:
    expected = continue_greedy(model, open_at(model, PROMPT), PROMPT, 6)
    source, fork, again = open_at(model, PROMPT), new_id(), new_id()
    model.fork(source, [fork])
    model.close([source])
    assert model.open_ids() == {fork}
    model.fork(fork, [again])
    assert continue_greedy(model, again, PROMPT, 6) == expected
    assert continue_greedy(model, fork, PROMPT, 6) == expected
    assert not model.open_ids()


def test_each_fork_draws_by_its_own_seed(model: LoadedModel) -> None:
    """As the choices of one request do."""
    ids = [open_at(model, PROMPT), new_id(), new_id()]
    model.fork(ids[0], ids[1:])
    for id, seed in zip(ids, (5, 6, 5), strict=True):
        model.start_decode(id, PROMPT[-1:], DecodeStart(PROMPT, SamplingParams(temperature=1.3), seed=seed))
    rows = [[step(model, id).token_ids[0] for _ in range(8)] for id in ids]
    model.close(ids)
    assert rows[0] == rows[2] != rows[1]


def test_what_cannot_be_forked_is_refused_loudly(model: LoadedModel) -> None:
    decoding, source, fork = start(model, OTHER), open_at(model, PROMPT), new_id()
    for id, into in ((decoding, [fork]), (source, [fork, decoding]), (source, [fork, fork]), (source, [source])):
        with pytest.raises(RuntimeError):
            model.fork(id, into)
    assert model.open_ids() == {decoding, source}
    model.fork(source, [])
    model.close([decoding, source])
