"""The compute port's contract on states with another owner: a sequence that takes over a live state goes on as if the
state were its own; a live state is taken over once; states that were restored from the same pieces are independent."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from application.ports.compute import LoadedModel
from application.ports.state_access import LeftState
from domain.ids import SequenceId
from domain.models.state_layout import StateKind
from domain.prefix.record import StatePayload
from tests.support.mlx.contract_models import OTHER, PROMPT, every_model, start, step
from tests.support.stores.state_replay import (
    BLOCK,
    GRID,
    Captured,
    capture,
    continue_greedy,
    new_id,
    open_at,
    prefill,
    prompt_of,
    whole_state,
)

ENDING = prompt_of(41, 41, vocab_size=250)
NUM_NEW = 20


def answered(model: LoadedModel, others: tuple[SequenceId, ...] = ()) -> tuple[SequenceId, tuple[int, ...]]:
    """A sequence that has answered PROMPT, decoded beside `others`, and the tokens that its state covers."""
    id, output = start(model, PROMPT), list[int]()
    for _ in range(NUM_NEW):
        for result in model.decode([id, *others]):
            assert result.error is None
            output += result.token_ids if result.id == id else ()
    return id, (*PROMPT, *output)[: model.position(id)]


def left_by(model: LoadedModel, id: SequenceId) -> LeftState:
    position, left = model.position(id), model.keep_live(id)
    assert left is not None
    assert left.position == position
    assert 1 <= left.first <= position
    assert left.size_bytes > 0
    assert id in model.left_ids()
    assert id not in model.open_ids()
    return left


def taken_over(model: LoadedModel, left: SequenceId, position: int) -> SequenceId:
    id = new_id()
    model.open(id)
    model.take_over(id, left, position)
    assert model.position(id) == position
    assert left not in model.left_ids()
    return id


def captured_at(model: LoadedModel, id: SequenceId, position: int) -> Captured:
    """All that an open sequence's state has for its position, or for one that full KV is cut back to."""
    if position == model.position(id):
        return Captured(position, [], model.capture_snapshot(id, 0))
    return Captured(position, [], model.capture_blocks(id, [(0, position)])[0])


def is_suffix(found: StatePayload, whole: StatePayload) -> bool:
    """Whether each tensor holds the last tokens of the other's, bit for bit."""
    for tensor, other in zip(tensors_of(found), tensors_of(whole), strict=True):
        last = tuple(slice(have - want, None) for have, want in zip(other.shape, tensor.shape, strict=True))
        if not np.array_equal(tensor, other[last]):
            return False
    return True


def tensors_of(payload: StatePayload) -> list[NDArray[Any]]:
    pairs = zip(payload.specs, payload.buffers(), strict=True)
    return [np.frombuffer(data, spec.dtype).reshape(spec.shape) for spec, data in pairs]


def positions_of(model: LoadedModel) -> list[int]:
    """Some of those that an answered sequence's state may be taken over at."""
    id, tokens = answered(model)
    first = left_by(model, id).first
    model.drop([id])
    assert id not in model.left_ids()
    wanted = {first, 1, BLOCK + 7, 2 * GRID, len(PROMPT) - 1, len(tokens) - 1, len(tokens)}
    return sorted(at for at in wanted if first <= at <= len(tokens))


@every_model
@pytest.mark.exact
def test_it_goes_on_like_a_state_that_was_restored(model: LoadedModel) -> None:
    if not model.description.layout.is_reusable:
        pytest.skip("this model's state cannot be captured")
    for position in positions_of(model):
        source, tokens = answered(model)
        captured = captured_at(model, source, position).on_host()
        prompt = tokens[:position] + ENDING
        left_by(model, source)
        mine = taken_over(model, source, position)
        prefill(model, mine, prompt, len(prompt) - 1)
        restored = open_at(model, prompt, captured)
        assert whole_state(model, mine) == whole_state(model, restored), position
        expected = continue_greedy(model, restored, prompt, 8)
        assert continue_greedy(model, mine, prompt, 8) == expected
    assert not model.open_ids()
    assert not model.left_ids()


@pytest.mark.parametrize("position", [1, BLOCK, 3 * BLOCK - 7])
@pytest.mark.exact
def test_a_restored_state_that_computed_nothing_gives_what_it_was_given(model: LoadedModel, position: int) -> None:
    """Cancelled before its first chunk, it is captured, left and taken over like any other, at each position that it
    may be: a slot that was restored empty is no token."""
    if not model.description.layout.is_reusable:
        pytest.skip("this model's state cannot be captured")
    captured = capture(model, PROMPT, position).on_host()
    computed = new_id()
    model.open(computed)
    prefill(model, computed, PROMPT, position)
    restored = new_id()
    model.open(restored)
    model.restore(restored, position, captured.blocks, captured.snapshot)
    spans = [(start, end) for start in range(position) for end in (start + 1, position)]
    given = zip(model.capture_blocks(restored, spans), model.capture_blocks(computed, spans), strict=True)
    for span, (found, expected) in zip(spans, given, strict=True):
        assert all(is_suffix(payload, expected[group]) for group, payload in found.items()), span
    first = left_by(model, restored).first
    for at in {first, (first + position) // 2, max(first, position - 1), position}:
        again = new_id()
        model.open(again)
        model.restore(again, position, captured.blocks, captured.snapshot)
        left_by(model, again)
        mine, prompt = taken_over(model, again, at), PROMPT[:at] + ENDING
        prefill(model, mine, prompt, len(prompt) - 1)
        other = open_at(model, prompt, capture(model, prompt, at))
        assert whole_state(model, mine) == whole_state(model, other), at
        model.close([mine, other])
    model.close([computed])
    model.drop([restored])


def test_windowed_and_recurrent_states_are_taken_over_where_they_are(model: LoadedModel) -> None:
    """Full KV may be cut back to any position."""
    if not model.description.layout.is_reusable:
        pytest.skip("this model's state cannot be captured")
    id, _ = answered(model)
    left = left_by(model, id)
    kinds = {layer.kind for _, layer in model.description.layout.leaves()}
    assert left.first == (1 if kinds == {StateKind.SLICED} else left.position)
    model.drop([id])


def test_on_the_grid_it_is_what_computing_gives(model: LoadedModel) -> None:
    on_grid = PROMPT[: 4 * GRID]
    for position in (GRID, 3 * GRID, 4 * GRID):
        source = new_id()
        model.open(source)
        prefill(model, source, on_grid, len(on_grid))
        prompt = on_grid[:position] + ENDING
        if left_by(model, source).first > position:
            model.drop([source])
            continue
        mine, computed = taken_over(model, source, position), open_at(model, prompt)
        prefill(model, mine, prompt, len(prompt) - 1)
        if model.description.layout.is_reusable:
            assert whole_state(model, mine) == whole_state(model, computed), position
        assert continue_greedy(model, mine, prompt, 8) == continue_greedy(model, computed, prompt, 8)


@every_model
@pytest.mark.exact
def test_a_row_that_leaves_a_batch_takes_its_own_state_and_no_other(model: LoadedModel) -> None:
    if not model.description.layout.is_reusable:
        pytest.skip("this model's state cannot be captured")
    expected, alone = list[int](), start(model, OTHER)
    for _ in range(NUM_NEW + 6):
        expected += step(model, alone).token_ids
    model.close([alone])
    other, output = start(model, OTHER), list[int]()
    source, tokens = start(model, PROMPT), list[int]()
    for _ in range(NUM_NEW):
        first, second = model.decode([source, other])
        tokens, output = [*tokens, *first.token_ids], [*output, *second.token_ids]
    covered = (*PROMPT, *tokens)[: model.position(source)]
    captured = captured_at(model, source, len(covered)).on_host()
    left_by(model, source)
    for _ in range(6):
        output += step(model, other).token_ids
    assert output == expected
    mine, prompt = taken_over(model, source, len(covered)), covered + ENDING
    prefill(model, mine, prompt, len(prompt) - 1)
    restored = open_at(model, prompt, captured)
    assert whole_state(model, mine) == whole_state(model, restored)
    model.close([mine, restored, other])


@pytest.mark.exact
def test_a_row_of_a_batch_stays_only_where_it_may_be_copied(model: LoadedModel) -> None:
    other = start(model, OTHER)
    source, _ = answered(model, (other,))
    alone = len(model.open_ids()) == 1
    left = model.keep_live(source, may_copy=False)
    if model.description.decode_mode.value == "batched":
        assert not alone
        assert left is None
    assert source not in model.open_ids()
    assert (source in model.left_ids()) == (left is not None)
    step(model, other)
    last = model.keep_live(other, may_copy=False)
    assert last is not None
    model.close([source, other])
    assert other in model.left_ids()
    model.drop([source, other])
    assert not model.left_ids()


@pytest.mark.exact
def test_what_is_left_is_there_once(model: LoadedModel) -> None:
    source, tokens = answered(model)
    left_by(model, source)
    mine = taken_over(model, source, len(tokens))
    late = new_id()
    model.open(late)
    with pytest.raises((KeyError, RuntimeError)):
        model.take_over(late, source, len(tokens))
    again = left_by(model, mine)
    assert again.position == len(tokens)
    model.close([late])
    model.drop([mine])
    assert not model.left_ids() | model.open_ids()


def test_a_live_state_that_cannot_be_cut_there_is_dropped(model: LoadedModel) -> None:
    source, tokens = answered(model)
    first = left_by(model, source).first
    if first == 1:
        pytest.skip("this state can be cut anywhere")
    mine = new_id()
    model.open(mine)
    with pytest.raises(Exception, match="take over"):
        model.take_over(mine, source, first - 1)
    assert model.position(mine) == 0
    assert not model.left_ids()
    prefill(model, mine, tokens, len(PROMPT) - 1)
    assert continue_greedy(model, mine, PROMPT, 4) == continue_greedy(model, open_at(model, PROMPT), PROMPT, 4)


def test_what_one_computes_changes_no_other(model: LoadedModel) -> None:
    if not model.description.layout.is_reusable:
        pytest.skip("this model's state cannot be captured")
    captured = capture(model, PROMPT, len(PROMPT) - 1)
    source, first, second = (open_at(model, PROMPT, captured) for _ in range(3))
    before = whole_state(model, source)
    for id, other in ((first, second), (source, second)):
        for _ in range(3):
            model.prefill(id, OTHER[:1])
        model.prefill(id, OTHER)
        assert whole_state(model, other) == before
    assert whole_state(model, first) == whole_state(model, source) != before
    model.close([source, first, second])
