"""The compute port's contract, over the toy engine and over MLX on tiny models of each layout."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

import pytest

from application.ports.compute import DecodeStart, LoadedModel
from application.ports.state_access import StateMisfit
from domain.errors import ComputeFailed
from domain.models.state_layout import HitPolicy
from domain.prefix.record import GroupPayloads, HostPayload, StatePayload, TensorSpec
from domain.request.sampling import SamplingParams
from tests.support.mlx.contract_models import GREEDY, OTHER, PROMPT, every_model, generate, start, step
from tests.support.stores.state_replay import (
    BLOCK,
    Captured,
    StateBytes,
    capture,
    continue_greedy,
    new_id,
    open_at,
    prefill,
    prompt_of,
    state_bytes,
    whole_state,
)


def skip_unless_reusable(model: LoadedModel) -> None:
    if not model.description.layout.is_reusable:
        pytest.skip("this model's state cannot be captured")


def test_describes_itself(model: LoadedModel) -> None:
    description = model.description
    assert description.vocab_size > max(PROMPT)
    assert all(0 <= eos < description.vocab_size for eos in description.eos_token_ids)
    assert description.context_length > 0
    assert description.weight_bytes > 0
    assert description.layout.layers
    assert description.weights_digest
    assert description.dtype


@pytest.mark.exact
def test_opens_and_closes_in_every_phase(model: LoadedModel) -> None:
    ids = [new_id() for _ in range(4)]
    for id in ids:
        model.open(id)
        assert model.position(id) == 0
    model.prefill(ids[1], PROMPT[:20])
    for id in ids[2:]:
        model.prefill(id, PROMPT[:20])
        model.start_decode(id, PROMPT[20:21], DecodeStart(PROMPT[:21], GREEDY, seed=1))
    model.decode([ids[3]])
    assert model.open_ids() == set(ids)
    with pytest.raises(RuntimeError):
        model.open(ids[0])
    model.close(ids[:3])
    assert model.open_ids() == {ids[3]}
    model.close([*ids, new_id()])
    assert not model.open_ids()


def test_position_counts_what_the_state_covers(model: LoadedModel) -> None:
    id = new_id()
    model.open(id)
    model.prefill(id, PROMPT[:33])
    model.prefill(id, PROMPT[33:40])
    assert model.position(id) == 40
    model.start_decode(id, PROMPT[40:45], DecodeStart(PROMPT[:45], GREEDY, seed=1))
    assert model.position(id) == 45
    for step_number in range(1, 6):
        step(model, id)
        assert model.position(id) - (44 + step_number) in (0, 1)
    model.close([id])


@pytest.mark.exact
def test_the_first_decode_gives_what_the_prompt_ended_in(model: LoadedModel) -> None:
    """However the end of the prompt is cut. Settings that concern the first token count for it."""
    eos = min(model.description.eos_token_ids)
    sampling = SamplingParams(temperature=0.9, num_logprobs=3, logit_bias=((eos, 100.0),), repetition_penalty=1.2)
    answers: list[list[int]] = []
    for cut in (len(PROMPT) - 1, len(PROMPT) - 7, 3 * BLOCK + 1, 0):
        id = new_id()
        model.open(id)
        prefill(model, id, PROMPT, cut)
        model.start_decode(
            id, PROMPT[cut:], DecodeStart(PROMPT, sampling, seed=3, min_tokens=2, eos_token_ids=frozenset({eos}))
        )
        assert model.position(id) == len(PROMPT)
        first = step(model, id)
        (logprob,) = first.logprobs
        assert (logprob.token_id,) == first.token_ids
        assert len(logprob.top) == 3
        answers.append([first.token_ids[0], *(step(model, id).token_ids[0] for _ in range(4))])
        model.close([id])
    assert eos not in answers[0][:2]
    assert answers[0][2] == eos
    assert answers[1:] == answers[:1] * 3


@every_model
@pytest.mark.exact
def test_the_end_of_a_prompt_leaves_what_can_be_cut(model: LoadedModel) -> None:
    """Blocks and tails captured after it are those captured before its last token."""
    skip_unless_reusable(model)
    end, size = len(PROMPT) - 1, BLOCK
    spans = [(3 * size, 4 * size), (4 * size, end)]
    whole, split = new_id(), new_id()
    for id in (whole, split):
        model.open(id)
        prefill(model, id, PROMPT, 3 * size)
    model.prefill(split, PROMPT[3 * size : end])
    before = [state_bytes(one) for one in model.capture_blocks(split, spans)]
    model.start_decode(whole, PROMPT[3 * size :], DecodeStart(PROMPT, GREEDY, seed=1))
    after = [state_bytes(one) for one in model.capture_blocks(whole, spans)]
    assert [set(one) for one in after] == [set(one) for one in before]
    for found, expected in zip(after, before, strict=True):
        assert shapes(found) == shapes(expected)
    longer = (*PROMPT[:end], 7, 8, 9)
    if not model.description.layout.needs_snapshots:
        first = capture(model, PROMPT, 3 * size)
        tail = model.capture_blocks(whole, spans)
        blocks = [*first.blocks, tail[0]]
        resumed = open_at(model, longer, Captured(end, blocks, tail[1]))
        assert continue_greedy(model, resumed, longer, 8) == continue_greedy(model, open_at(model, longer), longer, 8)
    model.close([whole, split])


def shapes(state: StateBytes) -> list[tuple[int, TensorSpec]]:
    return [(group, spec) for group, tensors in sorted(state.items()) for spec, _ in tensors]


def test_misuse_of_a_prompts_end_is_loud(model: LoadedModel) -> None:
    id = start(model, OTHER)
    for call in (
        lambda: model.prefill(id, (1,)),
        lambda: model.start_decode(id, (1,), DecodeStart((*OTHER, 1), GREEDY, seed=1)),
    ):
        with pytest.raises(RuntimeError):
            call()
    fresh = new_id()
    model.open(fresh)
    with pytest.raises(RuntimeError):
        model.start_decode(fresh, (), DecodeStart((), GREEDY, seed=1))
    with pytest.raises(RuntimeError):
        model.decode([fresh])
    model.close([id, fresh])


@every_model
@pytest.mark.exact
def test_decode_takes_any_subset_in_any_order(model: LoadedModel) -> None:
    prompts = {index: prompt_of(30 + 20 * index, index, vocab_size=250) for index in range(4)}
    expected = {index: continue_greedy(model, open_at(model, prompt), prompt, 14) for index, prompt in prompts.items()}
    ids = {index: start(model, prompt) for index, prompt in prompts.items()}
    output: dict[int, list[int]] = {index: [] for index in prompts}
    subsets = [(0,), (0, 1), (1, 0, 2, 3), (3, 2), (2, 0), (3, 1, 0), (0, 1, 2, 3), (1,), (3, 2, 1, 0), (0, 1, 2)]
    for subset in subsets:
        results = model.decode([ids[index] for index in subset])
        assert [result.id for result in results] == [ids[index] for index in subset]
        for index, result in zip(subset, results, strict=True):
            assert result.error is None
            output[index].append(result.token_ids[0])
    model.close(list(ids.values()))
    assert output == {index: expected[index][: len(tokens)] for index, tokens in output.items()}


def test_the_same_seed_gives_the_same_answer_in_any_company(model: LoadedModel) -> None:
    sampling = SamplingParams(temperature=1.3, top_p=0.95)
    alone = generate(model, 16, sampling, seed=42)
    assert alone != generate(model, 16, sampling, seed=43)
    id = start(model, PROMPT, sampling, seed=42)
    warm = SamplingParams(temperature=0.7, top_k=9, min_p=0.01, frequency_penalty=0.5)
    company = [start(model, OTHER[: 50 + 9 * index], (GREEDY, warm)[index % 2], seed=index) for index in range(3)]
    output: list[int] = []
    for number in range(16):
        named = [id, *company] if 3 < number < 12 else [id]
        output += [result.token_ids[0] for result in model.decode(named) if result.id == id]
    model.close([id, *company])
    assert output == alone


@every_model
def test_restored_state_equals_recomputed_state(model: LoadedModel) -> None:
    skip_unless_reusable(model)
    cold = open_at(model, PROMPT)
    expected = whole_state(model, cold)
    output = continue_greedy(model, cold, PROMPT, 8)
    for position in (BLOCK, 4 * BLOCK):
        captured = capture(model, PROMPT, position)
        for source in (captured, captured.on_host()):
            restored = open_at(model, PROMPT, source)
            assert whole_state(model, restored) == expected
            assert continue_greedy(model, restored, PROMPT, 8) == output


def test_restore_replaces_what_was_held(model: LoadedModel) -> None:
    skip_unless_reusable(model)
    captured = capture(model, PROMPT, 2 * BLOCK)
    cold = open_at(model, PROMPT)
    expected = whole_state(model, cold)
    busy = start(model, OTHER)
    model.decode([busy])
    model.restore(busy, captured.position, captured.blocks, captured.snapshot)
    assert model.position(busy) == 2 * BLOCK
    prefill(model, busy, PROMPT, len(PROMPT) - 1)
    assert whole_state(model, busy) == expected
    model.close([cold, busy])


def without_bytes(captured: Captured) -> Captured:
    """Every tensor lacks its last byte."""
    whole = captured.on_host()

    def cut(payloads: GroupPayloads) -> GroupPayloads:
        return {
            index: HostPayload(payload.specs, tuple(data[:-1] for data in payload.buffers()))
            for index, payload in payloads.items()
        }

    return Captured(whole.position, [cut(block) for block in whole.blocks], cut(whole.snapshot))


def without_tensors(captured: Captured) -> Captured:
    def emptied(payloads: GroupPayloads) -> GroupPayloads:
        return dict.fromkeys(payloads, HostPayload((), ()))

    return Captured(captured.position, [emptied(block) for block in captured.blocks], emptied(captured.snapshot))


MISFITS = [without_bytes, without_tensors, lambda captured: Captured(captured.position)]


@pytest.mark.parametrize("misfit", MISFITS, ids=["bytes", "tensors", "pieces"])
def test_pieces_that_do_not_fit_are_distinguished_from_other_failures(
    model: LoadedModel, misfit: Callable[[Captured], Captured]
) -> None:
    skip_unless_reusable(model)
    captured = misfit(capture(model, PROMPT, 3 * BLOCK))
    id = open_at(model, OTHER)
    with pytest.raises(StateMisfit):
        model.restore(id, captured.position, captured.blocks, captured.snapshot)
    assert model.position(id) == 0
    prefill(model, id, PROMPT, len(PROMPT) - 1)
    cold = open_at(model, PROMPT)
    assert whole_state(model, id) == whole_state(model, cold)
    model.close([id, cold])


@dataclass
class ScarcePayload:
    """A payload for which memory is missing until `has_room` says otherwise."""

    payload: StatePayload
    has_room: Event

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return self.payload.specs

    @property
    def size_bytes(self) -> int:
        return self.payload.size_bytes

    def buffers(self) -> tuple[memoryview, ...]:
        if not self.has_room.is_set():
            raise MemoryError("no room")
        return self.payload.buffers()


def test_the_same_pieces_are_restored_after_a_passing_failure(model: LoadedModel) -> None:
    skip_unless_reusable(model)
    captured, has_room = capture(model, PROMPT, 3 * BLOCK).on_host(), Event()

    def scarce(payloads: GroupPayloads) -> GroupPayloads:
        return {index: ScarcePayload(payload, has_room) for index, payload in payloads.items()}

    pieces = captured.position, [scarce(block) for block in captured.blocks], scarce(captured.snapshot)
    id, cold = open_at(model, OTHER), open_at(model, PROMPT)
    with pytest.raises(ComputeFailed, match="no room") as failed:
        model.restore(id, *pieces)
    assert not isinstance(failed.value, StateMisfit)
    assert (id in model.open_ids(), model.position(id)) == (True, 0)
    has_room.set()
    model.restore(id, *pieces)
    prefill(model, id, PROMPT, len(PROMPT) - 1)
    assert whole_state(model, id) == whole_state(model, cold)
    model.close([id, cold])


def test_payloads_can_be_read_by_any_thread(model: LoadedModel) -> None:
    skip_unless_reusable(model)
    captured = capture(model, PROMPT, 2 * BLOCK + 5)
    payloads = [payload for one in (*captured.blocks, captured.snapshot) for payload in one.values()]
    sizes: list[int] = []

    def read() -> None:
        for payload in payloads:
            check_payload(payload)
            sizes.append(payload.size_bytes)

    reader = threading.Thread(target=read)
    reader.start()
    reader.join()
    assert len(sizes) == len(payloads)
    assert sum(sizes) > 0


def check_payload(payload: StatePayload) -> None:
    buffers = payload.buffers()
    assert len(buffers) == len(payload.specs)
    for spec, data in zip(payload.specs, buffers, strict=True):
        assert data.ndim == 1
        assert data.format == "B"
        assert data.readonly
        assert data.nbytes == spec.size_bytes
    assert payload.size_bytes == sum(data.nbytes for data in buffers)


def test_blocks_hold_tokens_and_snapshots_the_rest(model: LoadedModel) -> None:
    skip_unless_reusable(model)
    groups = model.description.layout.groups
    tokens = {group.index for group in groups if group.policy is not HitPolicy.SNAPSHOT}
    states = {group.index for group in groups if group.policy is HitPolicy.SNAPSHOT}
    id = new_id()
    model.open(id)
    prefill(model, id, PROMPT, 2 * BLOCK)
    first, second = model.capture_blocks(id, [(0, BLOCK), (BLOCK, 2 * BLOCK)])
    assert set(second) == tokens
    assert set(first) <= tokens
    assert set(model.capture_snapshot(id, 2 * BLOCK)) == states
    assert set(model.capture_snapshot(id, BLOCK)) == tokens | states
    assert state_bytes(model.capture_blocks(id, [(BLOCK, 2 * BLOCK)])[0]) == state_bytes(second)
    model.close([id])
