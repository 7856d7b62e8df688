"""Capture and restore where bytes cross by a link of their own, as on an NVIDIA GPU, change no bit either."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from adapters.mlx.runtime.arrays import byte_view
from adapters.mlx.state import payload
from adapters.mlx.state import restore as state_restore
from adapters.mlx.state.payload import land
from tests.support.mlx.tiny_models import names, tiny_model
from tests.support.stores.state_replay import (
    BLOCK,
    Captured,
    capture,
    continue_greedy,
    open_at,
    prompt_of,
    state_bytes,
    whole_state,
)

FAMILIES = {
    "llama": "full attention",
    "deepseek_v3": "latents: keys and values of unequal width",
    "minimax_m3_vl": "an indexer whose values have no width",
    "gemma3_text": "rotating windows and full attention",
    "qwen3_next": "gated delta and attention",
    "longcat_flash_ngram": "token ids as a recurrent state",
}
PROMPT = prompt_of(151)
AT_GRID = 96


class HostLink:
    """What `CudaLink` does, in host memory: an upload may only be evaluated once all are settled, and a download only
    knows an address."""

    def __init__(self) -> None:
        self.uploaded: list[int] = []
        self.num_settled = 0
        self.most_bytes = self._unsettled_bytes = 0
        self._packs: list[mx.array] = []

    def upload(self, pieces: Sequence[np.ndarray[Any, Any]], axis: int, dtype: mx.Dtype) -> mx.array:
        assert sum(piece.nbytes for piece in pieces) <= state_restore.HALF_BYTES
        joined = np.concatenate(pieces, axis=axis)
        self.uploaded.append(joined.nbytes)
        self._unsettled_bytes += joined.nbytes
        self.most_bytes = max(self.most_bytes, self._unsettled_bytes)
        return mx.array(joined).view(dtype) if joined.size else mx.zeros(joined.shape, dtype)

    def settle(self) -> None:
        self.num_settled, self._unsettled_bytes = len(self.uploaded), 0

    def address_of(self, array: mx.array) -> mx.array:
        self._packs.append(array)
        return mx.array([len(self._packs) - 1], dtype=mx.uint64)

    def download(self, address: mx.array, size_bytes: int) -> memoryview:
        data = bytes(byte_view(self._packs[int(address.item())]))
        assert len(data) == size_bytes
        return memoryview(data)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> HostLink:
    found = HostLink()
    for module in (payload, state_restore):
        monkeypatch.setattr(module, "find_link", lambda: found)
        monkeypatch.setattr(module, "HALF_BYTES", 10_000)
    return found


@pytest.mark.parametrize("name", [name for name in FAMILIES if name in names()])
def test_restoring_over_a_link_changes_no_bit(name: str, link: HostLink) -> None:
    model = tiny_model(name)
    cold = open_at(model, PROMPT)
    expected = whole_state(model, cold)
    output = continue_greedy(model, cold, PROMPT, 6)
    captured = capture(model, PROMPT, AT_GRID)
    assert not link.uploaded
    for source in (captured.on_host(), captured):
        restored = open_at(model, PROMPT, source)
        assert whole_state(model, restored) == expected
        assert continue_greedy(model, restored, PROMPT, 6) == output
    assert link.uploaded
    assert link.num_settled == len(link.uploaded)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama", mx.bfloat16), ("gemma3_text", mx.bfloat16), ("deepseek_v3", mx.float32), ("qwen3_next", mx.float32)],
    ids=lambda one: str(one).rpartition(".")[2],
)
def test_what_was_landed_over_a_link_is_the_state(
    name: str, dtype: mx.Dtype, link: HostLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_restore, "on_cpu", lambda: False)
    model = tiny_model(name, dtype)
    cold = open_at(model, PROMPT)
    expected = whole_state(model, cold)
    captured = capture(model, PROMPT, AT_GRID).on_host()
    blocks = [dict(zip(block, land(list(block.values())), strict=True)) for block in captured.blocks]
    there = Captured(AT_GRID, blocks, dict(zip(captured.snapshot, land(list(captured.snapshot.values())), strict=True)))
    num_crossed = len(link.uploaded)
    assert link.num_settled == num_crossed > 0
    assert [state_bytes(block) for block in blocks] == [state_bytes(block) for block in captured.blocks]
    assert whole_state(model, open_at(model, PROMPT, there)) == expected
    assert len(link.uploaded) == num_crossed, "restoring is the device's own work then"


def test_long_columns_cross_in_parts(link: HostLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many blocks at a time as fit, and what never fits crosses without the link."""
    model = tiny_model("llama")
    captured = capture(model, PROMPT, AT_GRID).on_host()
    block_bytes = next(iter(captured.blocks[0].values())).specs[0].size_bytes
    cold = open_at(model, PROMPT)
    expected = whole_state(model, cold)
    for limit, sizes in ((2 * block_bytes, {block_bytes, 2 * block_bytes}), (block_bytes - 1, set[int]())):
        link.uploaded.clear()
        monkeypatch.setattr(state_restore, "HALF_BYTES", limit)
        restored = open_at(model, PROMPT, captured)
        assert set(link.uploaded) == sizes
        assert link.most_bytes == AT_GRID // BLOCK * block_bytes, "parts of one tensor at a time"
        assert whole_state(model, restored) == expected
        model.close([restored])
    model.close([cold])
