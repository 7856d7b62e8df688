"""The toy model keeps its promise: a right restore continues exactly, a wrong one never does."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, pairwise

from hypothesis import given
from hypothesis import strategies as st

from adapters.fake import LAYOUTS, FakeModel, FakeOptions
from application.ports.compute import DecodeStart
from domain.errors import ComputeFailed
from domain.ids import GroupIndex, ModelId, SequenceId
from domain.models.model_card import ModelSource
from domain.models.state_layout import HitPolicy, StateLayout
from domain.prefix.record import GroupPayloads, HostPayload
from domain.request.sampling import SamplingParams

BLOCK = 16
VOCAB = 1 << 20
OPTIONS = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
GREEDY = SamplingParams(temperature=0)
_ids = count()

layouts = st.sampled_from([layout for name, layout in LAYOUTS.items() if name != "unsupported"])
prompts = st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=120)


def model_of(layout: StateLayout, *, runs_ahead: bool = False) -> FakeModel:
    return FakeModel(ModelSource(ModelId("m"), "p"), replace(OPTIONS, layout=layout, runs_ahead=runs_ahead))


def opened(model: FakeModel) -> SequenceId:
    id = SequenceId(next(_ids))
    model.open(id)
    return id


def finish(model: FakeModel, id: SequenceId, prompt: Sequence[int], num_tokens: int = 6) -> list[int]:
    """Compute what is missing, then decode greedily."""
    model.start_decode(id, prompt[model.position(id) :], DecodeStart(tuple(prompt), GREEDY, seed=0))
    return [model.decode([id])[0].token_ids[0] for _ in range(num_tokens)]


def capture(model: FakeModel, prompt: Sequence[int], position: int) -> tuple[list[GroupPayloads], GroupPayloads]:
    """Compute up to `position` block by block, keeping what resuming there needs."""
    id = opened(model)
    blocks: list[GroupPayloads] = []
    whole = position // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):
        model.prefill(id, prompt[start : start + BLOCK])
        blocks += model.capture_blocks(id, [(start, start + BLOCK)])
    if position > whole:
        model.prefill(id, prompt[whole:position])
    return blocks, model.capture_snapshot(id, whole)


def tampered(payload: HostPayload, at: int) -> HostPayload:
    """The same payload with one 64-bit word changed."""
    words = [array("Q", bytes(buffer)) for buffer in payload.data]
    words[at % len(words)][at // len(words) % len(words[at % len(words)])] ^= 1
    return HostPayload(payload.specs, tuple(memoryview(word.tobytes()) for word in words))


@given(layouts, prompts, st.data())
def test_any_wrong_word_in_reach_is_a_wrong_token(layout: StateLayout, prompt: list[int], data: st.DataObject) -> None:
    prompt = [*prompt, *range(40)]
    model = model_of(layout)
    expected = finish(model, opened(model), prompt)
    position = data.draw(st.integers(1, len(prompt) - 1))
    blocks, snapshot = capture(model, prompt, position)
    group = data.draw(st.sampled_from(layout.groups))
    pieces = [snapshot] if group.index in snapshot else blocks[-1:]
    payload = pieces[0][group.index]
    assert isinstance(payload, HostPayload)
    # Within the last word of each buffer: always inside the window.
    last = len(payload.data[0]) // 8 - 1
    changed = {**pieces[0], group.index: tampered(payload, last * len(payload.data))}
    if pieces[0] is snapshot:
        snapshot = changed
    else:
        blocks[-1] = changed
    restored = opened(model)
    model.restore(restored, position, blocks, snapshot)
    assert finish(model, restored, prompt) != expected


@given(layouts, st.integers(2, 4))
def test_shifted_swapped_or_stale_pieces_are_wrong_tokens_or_refused(layout: StateLayout, num_blocks: int) -> None:
    prompt = list(range(num_blocks * BLOCK + 5))
    position = num_blocks * BLOCK
    model = model_of(layout)
    expected = finish(model, opened(model), prompt)
    blocks, snapshot = capture(model, prompt, position)
    other_blocks, stale = capture(model, [9, *prompt], position)
    _, earlier = capture(model, prompt, position - BLOCK)
    for wrong_blocks, wrong_snapshot in [
        (blocks[1:] + blocks[:1], stale),
        (other_blocks, snapshot if not layout.needs_snapshots else stale),
        (blocks[:-1], snapshot),
        (blocks, earlier if layout.needs_snapshots else {GroupIndex(0): blocks[0][GroupIndex(0)]}),
    ]:
        if all(group.policy is HitPolicy.SNAPSHOT for group in layout.groups) and wrong_snapshot == snapshot:
            continue
        restored = opened(model)
        try:
            model.restore(restored, position, wrong_blocks, wrong_snapshot)
        except ComputeFailed:
            assert model.position(restored) == 0
        else:
            assert finish(model, restored, prompt) != expected


def test_chunk_sensitive_states_depend_on_the_partition() -> None:
    options = replace(OPTIONS, chunk_sensitive=True)
    model = FakeModel(ModelSource(ModelId("m"), "p"), options)
    answers = []
    for cuts in ([0, 32, 64], [0, 32, 64], [0, 20, 64]):
        id = opened(model)
        for start, end in pairwise(cuts):
            model.prefill(id, range(start, end))
        answers.append(finish(model, id, range(70)))
    assert answers[0] == answers[1] != answers[2]


def test_a_long_decode_drops_the_window_of_earlier_blocks() -> None:
    model = model_of(LAYOUTS["windowed"])
    id = opened(model)
    finish(model, id, range(10), num_tokens=100)
    early, late = model.capture_blocks(id, [(0, 16), (80, 96)])
    trailing = next(group.index for group in LAYOUTS["windowed"].groups if group.policy is HitPolicy.TRAILING)
    assert trailing not in early
    assert trailing in late
