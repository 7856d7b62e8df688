"""Blocks captured together are the blocks captured one by one, and computing a chunk ahead changes no bit."""

import pytest

from adapters.mlx.model import MlxModel
from adapters.mlx.runtime.arrays import ChunkQueue
from adapters.mlx.state import capture as state_copy
from domain.ids import SequenceId
from domain.models.state_layout import HitPolicy
from domain.prefix.record import GroupPayloads
from tests.support.mlx.tiny_models import names, tiny_model
from tests.support.stores.state_replay import (
    BLOCK,
    Captured,
    StateBytes,
    continue_greedy,
    new_id,
    open_at,
    prefill,
    prompt_of,
    state_bytes,
    whole_state,
)

FAMILIES = {
    "llama": "full attention",
    "deepseek_v3": "latents: one head, so that a block of a whole is contiguous",
    "minimax_m3_vl": "an indexer whose values have no width",
    "gemma3_text": "rotating windows and full attention",
    "gpt_oss": "rotating windows with sinks",
    "llama4": "chunked attention",
    "qwen3_next": "gated delta and attention",
    "baichuan_m1": "composite of recurrent and rotating caches",
}
PROMPT = prompt_of(151)
NUM_BLOCKS = 4

installed = [name for name in FAMILIES if name in names()]


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where blocks are copied together."""
    monkeypatch.setattr(state_copy, "on_cpu", lambda: False)


@pytest.mark.parametrize("name", installed)
def test_blocks_captured_together_are_those_captured_alone(name: str) -> None:
    """After one long chunk, with blocks a window has lost, and with spans of several lengths and a gap."""
    model = tiny_model(name)
    id = new_id()
    model.open(id)
    prefill(model, id, PROMPT, NUM_BLOCKS * BLOCK, grid=NUM_BLOCKS * BLOCK)
    even = [(at * BLOCK, (at + 1) * BLOCK) for at in range(NUM_BLOCKS)]
    for spans in (even, even[1:], [(3, 9), (9, 40), (40, 72), (80, 81), (81, 128)]):
        together = [state_bytes(groups) for groups in model.capture_blocks(id, spans)]
        assert together == [state_bytes(model.capture_blocks(id, [span])[0]) for span in spans]
    model.close([id])


def test_a_block_outlives_those_captured_with_it() -> None:
    """Its bytes stay its own: nothing of the others is kept alive by it."""
    model = tiny_model("deepseek_v3")
    blocks = _captured_at(model, NUM_BLOCKS * BLOCK).blocks
    one = next(iter(blocks[1].values()))
    assert sum(pack.nbytes for pack in getattr(one, "packs")) == one.size_bytes  # noqa: B009 - not in the port


@pytest.mark.parametrize("name", [name for name in ("llama", "gemma3_text", "qwen3_next", "mamba2") if name in names()])
def test_computing_a_chunk_ahead_changes_no_bit(name: str) -> None:
    """Prefill, capture on the way, restore and decode, with each chunk still under way when the next one is queued."""
    waiting, ahead = tiny_model(name), tiny_model(name)
    ahead._chunks = ChunkQueue(True)
    outcomes = [_run(model) for model in (waiting, ahead)]
    assert outcomes[0] == outcomes[1]


def _captured_at(model: MlxModel, position: int) -> Captured:
    """One chunk, all of its blocks in one call."""
    id = new_id()
    model.open(id)
    prefill(model, id, PROMPT, position, grid=position)
    blocks = list(model.capture_blocks(id, [(at, at + BLOCK) for at in range(0, position, BLOCK)]))
    snapshot: GroupPayloads = {}
    if any(group.policy is HitPolicy.SNAPSHOT for group in model.description.layout.groups):
        snapshot = model.capture_snapshot(id, position)
    model.close([id])
    return Captured(position, blocks, snapshot)


def _run(model: MlxModel) -> tuple[list[StateBytes], StateBytes, list[int], list[int]]:
    captured = Captured(NUM_BLOCKS * BLOCK)
    id = SequenceId(1)
    model.open(id)
    for start in range(0, NUM_BLOCKS * BLOCK, BLOCK):
        prefill(model, id, PROMPT, start + BLOCK)
        captured.blocks += model.capture_blocks(id, [(start, start + BLOCK)])
    captured.snapshot = model.capture_snapshot(id, NUM_BLOCKS * BLOCK)
    prefill(model, id, PROMPT, len(PROMPT) - 1)
    state = whole_state(model, id)
    cold = continue_greedy(model, id, PROMPT, 8)
    restored = continue_greedy(model, open_at(model, PROMPT, captured), PROMPT, 8)
    return [state_bytes(groups) for groups in captured.blocks], state, cold, restored


def test_prefill_leaves_the_buffers_that_are_charged() -> None:
    """mlx-lm's own buffer would have 812 slots instead of 768 after two chunks of 300 tokens."""
    model, id = tiny_model("llama"), new_id()
    model.open(id)
    for _ in range(2):
        model.prefill(id, [5] * 300)
    left = model.keep_live(id)
    assert left is not None
    assert left.size_bytes == model.description.memory.state_bytes(600)
