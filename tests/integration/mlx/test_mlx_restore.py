"""Restored state equals recomputed state: every bit at grid positions, for each kind of cache layout."""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
import pytest

from adapters.mlx.caches.kv_rows import is_plain
from adapters.mlx.caches.leaves import leaves, live_arrays
from adapters.mlx.model import MlxModel
from adapters.mlx.state import restore as state_restore
from adapters.mlx.state.payload import ABSENT, PACK_BYTES, DevicePayload, upload
from application.ports.state_access import StateMisfit
from domain.ids import SequenceId
from domain.memory.kv_bits import KVBits
from domain.models.state_layout import HitPolicy
from domain.prefix.record import GroupPayloads, HostPayload, TensorSpec
from tests.support.effort import some_of
from tests.support.mlx.tiny_models import names, tiny_model
from tests.support.stores.state_replay import (
    Captured,
    StateBytes,
    capture,
    continue_greedy,
    new_id,
    open_at,
    prompt_of,
    start_greedy,
    state_bytes,
    whole_state,
)

FAMILIES = {
    "llama": "full attention",
    "gpt2": "full attention, learnt positions",
    "deepseek_v3": "latents: keys and values of unequal width",
    "deepseek_v32": "composite of two token caches",
    "minimax_m3_vl": "an indexer whose values have no width",
    "gemma3_text": "rotating windows and full attention",
    "gpt_oss": "rotating windows with sinks",
    "gemma3n": "fewer caches than layers",
    "llama4": "chunked attention",
    "mamba": "recurrent only",
    "mamba2": "recurrent only, state space duality",
    "rwkv7": "recurrent only, three arrays a layer",
    "lfm2": "short convolutions and attention",
    "qwen3_next": "gated delta and attention",
    "falcon_h1": "composite of recurrent and token caches",
    "baichuan_m1": "composite of recurrent and rotating caches",
    "nemotron_h": "layers without a cache",
    "recurrent_gemma": "recurrent and rotating",
    "longcat_flash_ngram": "token ids as a recurrent state",
    "kimi_linear": "four arrays a layer, and latents",
    "deepseek_v41": "a cache class of its own",
}
PROMPT = prompt_of(151)
AT_GRID = 96

QUANTISED = {"llama": KVBits(8, 8), "gpt2": KVBits(4, 4), "falcon_h1": KVBits(8, 4), "gemma3n": KVBits(4, 4)}
"""Families whose full KV is kept in fewer bits as well."""

installed = [name for name in FAMILIES if name in names()]
quantised = [f"{name} in fewer bits" for name in QUANTISED if name in installed]
every_family = pytest.mark.parametrize("model", [*installed, *quantised], indirect=True, scope="module")
OF_EACH_KIND = {
    *("deepseek_v32", "gemma3_text", "llama4", "mamba2", "falcon_h1", "baichuan_m1", "deepseek_v41"),
    *("llama in fewer bits", "gemma3n in fewer bits"),
}
"""Token caches of one array and of two, windows, chunks, recurrent state alone and in composites, fewer bits."""


@pytest.fixture(scope="module", params=some_of([*installed, *quantised], OF_EACH_KIND))
def model(request: pytest.FixtureRequest) -> MlxModel:
    name, in_fewer, _ = str(request.param).partition(" in fewer bits")
    return tiny_model(name, kv_bits=QUANTISED[name] if in_fewer else None)


@pytest.fixture(scope="module")
def cold(model: MlxModel) -> tuple[StateBytes, list[int]]:
    """The whole state after the prompt, and twelve tokens after it, with nothing restored."""
    id = open_at(model, PROMPT)
    return whole_state(model, id), continue_greedy(model, id, PROMPT, 12)


@pytest.fixture(scope="module")
def captured_at(model: MlxModel) -> Callable[[int], Captured]:
    """The prompt's state at a position, computed once; not to be changed."""
    return functools.cache(lambda position: capture(model, PROMPT, position))


@every_family
@pytest.mark.parametrize("joins_on_device", [False, True])
def test_restoring_at_a_grid_position_changes_no_bit(
    model: MlxModel,
    cold: tuple[StateBytes, list[int]],
    captured_at: Callable[[int], Captured],
    joins_on_device: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_restore, "on_cpu", lambda: not joins_on_device)
    assert model.description.layout.is_reusable
    (expected, output), captured = cold, captured_at(AT_GRID)
    for source in (captured, captured.on_host(), _mixed(captured), _uploaded(captured)):
        restored = open_at(model, PROMPT, source)
        assert whole_state(model, restored) == expected
        num_new = len(output) if source is captured else 3
        assert continue_greedy(model, restored, PROMPT, num_new) == output[:num_new]
    assert not model.open_ids()


def shapes_held(model: MlxModel, id: SequenceId) -> list[tuple[int, ...]]:
    """Of all caches that keep every token. Windowed ones put theirs together anew in each forward pass."""
    growing = [cache for cache in leaves(model._rows[id].caches) if is_plain(cache)]
    return [array.shape for array in live_arrays(growing)]


@pytest.mark.parametrize(("position", "joins_on_device"), [(AT_GRID, True), (150, False), (150, True)])
def test_restored_buffers_have_the_shapes_that_computing_gives_them(
    model: MlxModel,
    captured_at: Callable[[int], Captured],
    position: int,
    joins_on_device: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel may sum in another order where a buffer has other strides: bfloat16 attention on CUDA does."""
    monkeypatch.setattr(state_restore, "on_cpu", lambda: not joins_on_device)
    captured = captured_at(position)
    cold = open_at(model, PROMPT[: position + 1])
    for source in (captured, captured.on_host(), _mixed(captured)):
        restored = new_id()
        model.open(restored)
        model.restore(restored, source.position, source.blocks, source.snapshot)
        assert shapes_held(model, restored) == shapes_held(model, cold)
        model.close([restored])
    model.close([cold])


def test_only_the_blocks_a_window_reaches_are_needed(model: MlxModel, cold: tuple[StateBytes, list[int]]) -> None:
    layout = model.description.layout
    captured = capture(model, PROMPT, AT_GRID)
    trailing = {group.index for group in layout.groups if group.policy is HitPolicy.TRAILING}
    captured.blocks[0] = {index: found for index, found in captured.blocks[0].items() if index not in trailing}
    restored = open_at(model, PROMPT, captured)
    assert whole_state(model, restored) == cold[0]
    model.close([restored])


@pytest.mark.exact
def test_a_snapshot_off_the_grid_resumes_to_the_same_tokens(
    model: MlxModel, cold: tuple[StateBytes, list[int]], captured_at: Callable[[int], Captured]
) -> None:
    expected = cold[1][:6]
    for position in (AT_GRID + 9, 150, 7):
        captured = captured_at(position).on_host()
        assert continue_greedy(model, open_at(model, PROMPT, captured), PROMPT, 6) == expected


@pytest.mark.exact
def test_state_captured_while_decoding_resumes_the_same_stream(model: MlxModel) -> None:
    """Alone and from the middle of a batch, at a block's end and elsewhere."""
    prompt = PROMPT[:60]
    expected = continue_greedy(model, open_at(model, prompt), prompt, 20)
    id, others = open_at(model, prompt), [open_at(model, prompt_of(length, 1)) for length in (75, 44)]
    start_greedy(model, id, prompt)
    for other, length in zip(others, (75, 44), strict=True):
        start_greedy(model, other, prompt_of(length, 1))
    output: list[int] = []
    for step in range(16):
        company = others if 4 <= step < 12 else []
        results = model.decode([*company[:1], id, *company[1:]])
        output += [result.token_ids[0] for result in results if result.id == id]
        if step in (2, 5, 9, 14):
            tokens = (*prompt, *expected)[: model.position(id) + 1]
            held = Captured(model.position(id), [], model.capture_snapshot(id, 0))
            assert_close(held, capture_whole(model, tokens[:-1]))
            tail = continue_greedy(model, open_at(model, tokens, held.on_host()), tokens, 4)
            assert tail == expected[len(tokens) - len(prompt) :][:4]
    assert output == expected[:16]
    model.close([id, *others])


def capture_whole(model: MlxModel, tokens: Sequence[int]) -> Captured:
    """All of the state after `tokens`, computed by prefill and captured as one span."""
    id = open_at(model, (*tokens, 0))
    found = Captured(len(tokens), [], model.capture_snapshot(id, 0))
    model.close([id])
    return found


def assert_close(found: Captured, expected: Captured) -> None:
    """Equal up to rounding: decoding and prefill use other kernels."""
    assert found.snapshot.keys() == expected.snapshot.keys()
    for index, payload in found.snapshot.items():
        other = expected.snapshot[index]
        assert payload.specs == other.specs
        for spec, one, two in zip(payload.specs, payload.buffers(), other.buffers(), strict=True):
            first, second = (np.frombuffer(data, spec.dtype) for data in (one, two))
            if first.size:
                assert np.mean(np.abs(first - second)) <= 1e-3 * np.mean(np.abs(second)) + 1e-6


def test_pieces_of_another_dtype_are_refused(model: MlxModel, captured_at: Callable[[int], Captured]) -> None:
    """As many bytes as expected, from which MLX would compute nonsense."""

    def retyped(payloads: GroupPayloads) -> GroupPayloads:
        return {
            index: HostPayload(tuple(TensorSpec("int32", spec.shape) for spec in payload.specs), payload.buffers())
            for index, payload in payloads.items()
        }

    captured, id = captured_at(AT_GRID).on_host(), new_id()
    model.open(id)
    with pytest.raises(StateMisfit, match="does not match"):
        model.restore(id, AT_GRID, [retyped(block) for block in captured.blocks], retyped(captured.snapshot))
    assert model.position(id) == 0
    model.close([id])


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "lfm2"])
def test_half_precision_state_is_restored_bit_for_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(name, mx.bfloat16)
    cold = open_at(model, PROMPT)
    expected = whole_state(model, cold)
    captured = capture(model, PROMPT, AT_GRID)
    specs = {spec.dtype for payload in captured.snapshot.values() for spec in payload.specs}
    specs |= {spec.dtype for block in captured.blocks for payload in block.values() for spec in payload.specs}
    assert "bfloat16" in specs
    monkeypatch.setattr(state_restore, "on_cpu", lambda: False)
    for source in (captured, captured.on_host(), _uploaded(captured)):
        restored = open_at(model, PROMPT, source)
        assert whole_state(model, restored) == expected
        model.close([restored])
    model.close([cold])


def _mixed(captured: Captured) -> Captured:
    """Some blocks from the device, some from the host, as a hot tier in front of a store gives them."""
    pairs = zip(captured.blocks, captured.on_host().blocks, strict=True)
    blocks = [own if index % 2 else other for index, (own, other) in enumerate(pairs)]
    return Captured(captured.position, blocks, captured.snapshot)


def _uploaded(captured: Captured) -> Captured:
    """What a store gave back, copied to the device by a thread that computes nothing; its bytes are still those."""
    with ThreadPoolExecutor(1) as reader:
        found = captured.on_host()
        blocks = [_each_uploaded(reader, block) for block in found.blocks]
        uploaded = Captured(captured.position, blocks, _each_uploaded(reader, found.snapshot))
    assert [state_bytes(block) for block in uploaded.blocks] == [state_bytes(block) for block in found.blocks]
    assert state_bytes(uploaded.snapshot) == state_bytes(found.snapshot)
    return uploaded


def _each_uploaded(reader: ThreadPoolExecutor, payloads: GroupPayloads) -> GroupPayloads:
    return {index: reader.submit(upload, [payload]).result()[0] for index, payload in payloads.items()}


def test_small_tensors_share_a_buffer_and_large_ones_do_not() -> None:
    small, large = TensorSpec("float32", (1, 2, 16, 8)), TensorSpec("bfloat16", (2, 1, PACK_BYTES // 4))
    specs = (*[small] * 1100, large, large, ABSENT, TensorSpec("float32", (1, 2, 0, 8)))
    data = [memoryview(bytes([index % 251]) * spec.size_bytes) for index, spec in enumerate(specs)]
    (uploaded,) = upload([HostPayload(specs, tuple(data))])
    assert isinstance(uploaded, DevicePayload)
    assert upload([uploaded])[0] is uploaded
    assert [pack.nbytes for pack in uploaded.packs] == [
        PACK_BYTES,
        PACK_BYTES,
        76 * small.size_bytes,
        *[PACK_BYTES] * 2,
    ]
    assert [bytes(found) for found in uploaded.buffers()] == [bytes(sent) for sent in data]
    tensors = [None if found is None else (found.shape, found.dtype) for found in uploaded.tensors()]
    assert tensors[1099:-1] == [(small.shape, mx.float32), *[(large.shape, mx.bfloat16)] * 2, None]
    assert tensors[-1] == ((1, 2, 0, 8), mx.float32)
